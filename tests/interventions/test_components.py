"""Heads and MLPs exchanged: the same numbers as by hand, what construction promises, and derivatives that are derivatives."""

import pytest
import torch

from compolens import HypernetworkTransformer, Hyperteacher, SoftmaxTransformer
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.interventions.components import answers_of, attributed, components, exchanged, hold, shift
from compolens.models import HYLA, FixedThreshold, RelativeTransfer, SparseCoding
from compolens.tasks import Relations, SRaven

TEACHER = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
SMALL = {"n_layers": 2, "d_model": 16, "n_heads": 4}
KINDS = {
    "softmax": (SoftmaxTransformer(**SMALL), TEACHER),
    "hypernetwork": (HypernetworkTransformer(**SMALL, d_code=6, d_hidden=12), TEACHER),
    "hyla": (HYLA(**SMALL, n_ctx=18), SRaven(n_features=2)),
    "sparse": (SparseCoding(**SMALL, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations()),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def built(kind, double=False):
    """(task, model, episodes, their inputs under other codes)."""
    architecture, task = KINDS[kind]
    torch.manual_seed(0)
    model = architecture.build(**task.dimensions).eval()
    (base,) = draw(task, "test", 8, 0)
    other = task.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    if double:
        model = model.double()
        base, other = ((e._replace(tokens=e.tokens.double()) if e.tokens.is_floating_point() else e) for e in (base, other))
    return task, model, base, other


@each_kind
def test_an_exchange_is_that_of_a_hook_on_the_whole_run(kind):
    """By TransformerLens' own hooks and indices written out, on every component of every kind of attention."""
    _, model, base, other = built(kind)
    parts = components(model, base.tokens)
    own, donor = hold(model, base, parts), hold(model, other, parts)
    assert [p.name for p in parts][:5] == ["L0H0", "L0H1", "L0H2", "L0H3", "L0MLP"] and len(parts) == 10
    for part in parts:
        given = donor.sites[part.hook_name]

        def put(tensor, hook, part=part, given=given):
            if part.kind == "MLP":
                return given
            tensor = tensor.clone()
            if kind == "hyla":
                assert hook.name.endswith("hook_code")
                tensor[:, :, :, part.head] = given[:, :, :, part.head]
            else:
                assert hook.name.endswith("hook_z")
                tensor[:, :, part.head] = given[:, :, part.head]
            return tensor

        with torch.no_grad():
            wanted = model.run_with_hooks(base.tokens, fwd_hooks=[(part.hook_name, put)])
        found = exchanged(model, base, own, part, given)
        assert torch.allclose(found, wanted, atol=1e-6) and not torch.allclose(found, own.prediction, atol=1e-7), part.name
        assert torch.allclose(exchanged(model, base, own, part, own.sites[part.hook_name]), own.prediction, atol=1e-6)


@each_kind
def test_the_first_order_estimate_is_the_derivative_of_the_exchange(kind):
    """A thousandth of the difference put in makes a thousandth of the estimate."""
    task, model, base, other = built(kind, double=True)
    parts = components(model, base.tokens)
    own, donor = hold(model, base, parts), hold(model, other, parts)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    estimate, small = attributed(model, task, base, own, donor, parts, goal), 1e-5
    for part in parts:
        here, there = own.sites[part.hook_name], donor.sites[part.hook_name]
        step = exchanged(model, base, own, part, torch.lerp(here, there, small))
        moved = goal.along(answers_of(task, step, base.targets)) / small
        assert torch.allclose(moved, estimate[part.name], rtol=1e-2, atol=1e-4 * float(goal.weight.max())), part.name


def test_the_integrated_estimate_is_the_mean_of_derivatives_along_the_stream():
    task, model, base, other = built("softmax", double=True)
    parts = components(model, base.tokens)
    own, donor = hold(model, base, parts), hold(model, other, parts)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    first, small = "blocks.0.hook_resid_pre", 1e-5
    total = dict.fromkeys((part.name for part in parts), 0)
    for share in (0.25, 0.75):
        stream = own.sites[first] + share * (donor.sites[first] - own.sites[first])
        for part in parts:
            difference = donor.sites[part.hook_name] - own.sites[part.hook_name]
            ends = []
            for sign in (-small, small):

                def push(tensor, hook, part=part, difference=difference, sign=sign):
                    return part.put(tensor, tensor + sign * difference)

                with torch.no_grad():
                    hooks = [(first, lambda tensor, hook, stream=stream: stream), (part.hook_name, push)]
                    ends.append(answers_of(task, model.run_with_hooks(base.tokens, fwd_hooks=hooks), base.targets))
            total[part.name] = total[part.name] + ((ends[1] - ends[0]) * goal.way).flatten(1).sum(1) / (2 * small) / 2
    found = attributed(model, task, base, own, donor, parts, goal, points=2)
    for part in parts:
        assert torch.allclose(found[part.name], total[part.name], rtol=1e-3, atol=1e-6 * float(goal.weight.max())), part.name


def test_where_one_head_alone_writes_it_carries_the_whole_shift_and_the_others_nothing():
    task, _, base, other = built("softmax")
    torch.manual_seed(0)
    model = SoftmaxTransformer(n_layers=1, d_model=16, n_heads=4, attn_only=True).build(**task.dimensions).eval()
    with torch.no_grad():
        model.blocks[0].attn.W_O[[0, 1, 3]] = 0
    parts = components(model, base.tokens)
    own, donor = hold(model, base, parts), hold(model, other, parts)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    for part in parts:
        moved = goal.along(answers_of(task, exchanged(model, base, own, part, donor.sites[part.hook_name]), base.targets))
        share = moved / goal.weight
        assert torch.allclose(share, torch.full_like(share, float(part.head == 2)), atol=1e-4), part.name


def test_a_constant_added_to_all_logits_is_no_shift():
    task, model, base, _ = built("hyla")
    with torch.no_grad():
        prediction = model(base.tokens)
    goal = shift(task, prediction, prediction + 3.0, base.targets)
    assert float(goal.weight.max()) < 1e-9


def test_a_model_without_such_hook_points_is_told_what_to_name():
    class Bare(HookedModel):
        def __init__(self):
            super().__init__()
            self.cfg = type("cfg", (), {"n_layers": 1, "use_attn_result": False})()
            self.hook_code = HookPoint()
            self.setup()

        def forward(self, tokens):
            return self.hook_code(tokens)

    with pytest.raises(DoesNotApply, match="sites="):
        components(Bare(), torch.zeros(2, 3, 4))
