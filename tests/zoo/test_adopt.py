"""Networks from elsewhere: hooked without a change of one bit, saved, loaded only when named, measured without an untrained
control."""

import copy
import dataclasses
import json
import runpy
import shutil

import pandas as pd
import pytest
import torch
from torch import nn
from transformers.utils import ModelOutput

import compolens
from compolens import Adopted, FixedEpisodes, Run, adopt, challenge, cli, recipes, tables
from compolens.activations.sites import Site, put, residual_sites
from compolens.activations.streams import draw
from compolens.foundation import digests
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.repairs import Budget, fine_tune, folds, parameters_downstream, whole
from compolens.network_baselines import FrozenReadout, Linearised
from compolens.training import train
from compolens.zoo.adopted import NO_UNTRAINED_CONTROL
from compolens.zoo.folders import load

SITES = {
    "blocks.0.hook_resid_pre": "embed",
    "blocks.0.attn.hook_z": ("attend.0", "output", 0),
    "blocks.0.hook_resid_post": "between",
    "blocks.1.hook_resid_post": ("read", "input"),
    "hook_code": "code",
}
IDENTITY = {"metric", "split", "site", "role", "control", "reference", "composition"}


class Stepped(nn.Module):
    """Attention twice, then answers from the stream and from a code (batch, 4) of its mean."""

    def __init__(self, d_in=7, d_out=2, width=8):
        super().__init__()
        self.embed = nn.Linear(d_in, width)
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.between = nn.Identity()
        self.code = nn.Linear(width, 4)
        self.read = nn.Linear(width, d_out)
        self.scale = nn.Linear(4, d_out)

    def forward(self, tokens, keep=None):
        x = self.embed(tokens)
        code = self.code(x.mean(1))
        x = self.between(x + self.attend[0](x, x, value=x)[0])
        x = x + self.attend[1](x, x, value=x)[0]
        return self.read(x) + self.scale(code)[:, None]


def third_answers(module, tokens):
    return module(tokens)[:, 6:9]


def failing(module, tokens):
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Stepped().eval()


@pytest.fixture
def tokens(tiny_task):
    return next(draw(tiny_task, "test", 5, 0)).tokens


@pytest.fixture
def adopted(net, tiny_task):
    return adopt(net, tiny_task, sites=SITES, evaluation_episodes=64)


def bits(tensor):
    return tensor.detach().numpy().tobytes()


# ---- hooked, and the same ----------------------------------------------------------------------------------------------
def test_outputs_are_the_bare_networks_bit_for_bit_hooked_or_not(net, tiny_task, tokens):
    before = bits(net(tokens))
    model = adopt(net, tiny_task, sites=SITES).model
    assert bits(model(tokens)) == bits(net(tokens)) == before
    assert bits(model.run_with_cache(tokens)[0]) == before
    with torch.no_grad():
        fused = bits(net(tokens))
        assert bits(model(tokens)) == fused


def test_a_fused_layer_of_torch_stays_fused_while_nothing_is_read(tiny_task, tokens, monkeypatch):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = nn.Sequential(nn.Linear(7, 8), layer, nn.Linear(8, 2)).eval()
    model = adopt(network, tiny_task, sites={"blocks.0.hook_resid_pre": "0", "blocks.0.hook_resid_post": "1"}).model
    kernel, calls = torch._transformer_encoder_layer_fwd, []
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: [calls.append(1), kernel(*given)][1])
    with torch.no_grad():
        alone = network(tokens)
        assert bits(model(tokens)) == bits(alone) and len(calls) == 2
        assert torch.allclose(model.run_with_cache(tokens)[0], alone, atol=1e-5) and len(calls) == 2


def test_a_network_that_is_known_at_its_hook_points_alone_does_not_stop_at_a_layer(adopted, tokens):
    assert torch.equal(adopted.model(tokens, stop_at_layer=None), adopted.model(tokens))
    with pytest.raises(DoesNotApply, match=r"computed whole, got stop_at_layer=1; read the stream at its hook point"):
        adopted.model(tokens, stop_at_layer=1)


def test_nothing_stays_attached_to_the_network(net, adopted, tokens):
    adopted.model.run_with_cache(tokens)
    with pytest.raises(ZeroDivisionError):
        adopted.model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda tensor, hook: 1 / 0)])
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())


def test_hook_points_hold_what_passes_at_the_submodules(net, adopted, tokens):
    _, cache = adopted.model.run_with_cache(tokens)
    x = net.embed(tokens)
    z = net.attend[0](x, x, x)[0]
    after = x + z
    assert bits(cache["blocks.0.hook_resid_pre"]) == bits(x)
    assert bits(cache["blocks.0.attn.hook_z"]) == bits(z)
    assert bits(cache["blocks.0.hook_resid_post"]) == bits(after)
    assert cache["hook_code"].shape == (5, 1, 4)
    assert residual_sites(adopted.model)[2] == "blocks.1.hook_resid_post"
    assert adopted.model.roles == {"context": [0, 1, 2, 3, 4, 5], "readout": [6, 7, 8]}


def test_an_edit_is_what_the_network_goes_on_with(net, adopted, tokens):
    edited = torch.randn(5, 9, 8, generator=torch.Generator().manual_seed(0))
    answer = adopted.model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_resid_post", lambda tensor, hook: edited)])
    code = net.scale(net.code(net.embed(tokens).mean(1)))[:, None]
    assert torch.equal(answer, net.read(edited) + code)
    zero = adopted.model.run_with_hooks(tokens, fwd_hooks=[("hook_code", lambda tensor, hook: torch.zeros_like(tensor))])
    assert torch.allclose(net(tokens) - zero, code - net.scale.bias, atol=1e-6)
    put_back = put(adopted.model, tokens, Site(2, "blocks.1.hook_resid_post", "all"), edited)
    assert torch.equal(put_back, answer)
    z = adopted.model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda tensor, hook: 0 * tensor)])
    x = net.embed(tokens)
    assert torch.allclose(z, net.read(x + net.attend[1](x, x, x)[0]) + code, atol=1e-6)


class Added(nn.Module):
    """A block that is added to the stream, in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.embed, self.norm, self.block = nn.Linear(7, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.act, self.keep, self.read = nn.ReLU(inplace=in_place), nn.Identity(), nn.Linear(8, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.in_place:
            x += self.act(self.block(self.norm(x).cumsum(1)))
        else:
            x = x + self.act(self.block(self.norm(x).cumsum(1)))
        return self.read(self.keep(x))


@pytest.mark.filterwarnings("ignore:.*goes round")
def test_a_network_that_works_in_place_is_read_and_written_as_one_that_does_not(tiny_task, tokens):
    names = {"blocks.0.hook_resid_pre": "embed", "blocks.0.hook_resid_post": "keep"}
    names |= {"blocks.0.hook_attn_in": ("norm", "input"), "blocks.0.hook_block": "block"}
    first, second = Added(True).eval(), Added(False).eval()
    second.load_state_dict(first.state_dict())
    models = [adopt(net, tiny_task, sites=names).model for net in (first, second)]
    with torch.no_grad():
        caches = [model.run_with_cache(tokens)[1] for model in models]
        assert all(bits(caches[0][name]) == bits(caches[1][name]) for name in names)
        for name in names:
            edited = torch.randn(5, 9, 8)
            before = edited.clone()
            patched = [model.run_with_hooks(tokens, fwd_hooks=[(name, lambda t, hook, e=edited: e)]) for model in models]
            assert bits(patched[0]) == bits(patched[1]) and torch.equal(edited, before)
        stream = Site(0, "blocks.0.hook_resid_pre", "all")
        assert bits(put(models[0], tokens, stream, edited)) == bits(put(models[1], tokens, stream, edited))
    assert torch.equal(edited, before)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_resuming_from_its_own_stream_is_the_forward_pass(adopted, tokens, layer):
    prediction, cache = adopted.model.run_with_cache(tokens)
    assert torch.equal(adopted.model.resume(cache[residual_sites(adopted.model)[layer]], layer, tokens), prediction)


def test_an_input_is_edited_wherever_the_submodule_gets_it_or_where_the_index_says(net, tiny_task, tokens):
    """attention(x, x, value=x): without an index all three are the edited one, with 0 the query alone."""
    other = torch.randn(5, 9, 8, generator=torch.Generator().manual_seed(1))
    got, forward = [], net.attend[1].forward
    net.attend[1].forward = lambda q, k, value: got.append([q, k, value]) or forward(q, k, value)
    for place, edited in ((("attend.1", "input"), [True, True, True]), (("attend.1", "input", 0), [True, False, False])):
        model = adopt(net, tiny_task, sites={"hook_attend_in": place}, evaluation_episodes=64).model
        model.run_with_hooks(tokens, fwd_hooks=[("hook_attend_in", lambda tensor, hook: other)])
        assert [torch.equal(one, other) for one in got[-1]] == edited


@pytest.mark.parametrize("frozen", [False, True])
def test_a_stream_that_goes_round_its_hook_point_is_told(net, tiny_task, recwarn, frozen):
    for parameter in net.parameters():
        parameter.requires_grad_(not frozen)
    adopt(net, tiny_task, sites=SITES)
    told = [str(warning.message) for warning in recwarn.list]
    assert not [one for one in told if "goes round" in one], "everything of these passes their hook points"
    recwarn.clear()
    for place in (("attend.1", "input"), ("attend.1", "input", 0)):  # the skip connection goes round it
        with pytest.warns(UserWarning, match=r"site 'blocks\.0\.hook_resid_post': part of it goes round the submodule"):
            adopt(net, tiny_task, sites={"blocks.0.hook_resid_post": place})
    adopt(net, tiny_task, sites={"blocks.0.attn.hook_z_in": ("attend.1", "input", 0)})  # no stream: as one pleases
    assert not [one for one in recwarn.list if "goes round" in str(one.message)]


def test_keywords_and_mappings_can_be_sites(tiny_task, tokens):
    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, tokens):
            return self.inner(stream=tokens)["answer"]

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(7, 2)

        def forward(self, stream):
            return {"answer": self.read(stream), "n": 1}

    sites = {"blocks.0.hook_resid_pre": ("inner", "input", "stream"), "hook_out": ("inner", "output", "answer")}
    model = adopt(Keyed().eval(), tiny_task, sites=sites).model
    hooks = [("blocks.0.hook_resid_pre", lambda t, hook: 0 * t), ("hook_out", lambda t, hook: t + 1)]
    answer = model.run_with_hooks(tokens, fwd_hooks=hooks)
    assert torch.allclose(answer, model.module.inner.read.bias.expand(5, 9, 2) + 1)


def test_entries_of_an_output_of_transformers_are_counted_or_named(tiny_task, tokens):
    @dataclasses.dataclass
    class Output(ModelOutput):
        none: torch.Tensor | None = None
        stream: torch.Tensor | None = None

    class Put(nn.Module):
        def forward(self, stream):
            return Output(stream=stream)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.put, self.read = Put(), nn.Linear(7, 2)

        def forward(self, tokens):
            return self.read(self.put(tokens).stream)

    for index in (0, "stream"):
        sites = {"blocks.0.hook_resid_pre": ("put", "output", index), "blocks.0.hook_resid_post": ("read", "input")}
        model = adopt(Whole().eval(), tiny_task, sites=sites).model
        assert torch.equal(model.run_with_cache(tokens)[1]["blocks.0.hook_resid_pre"], tokens)
        zero = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_resid_pre", lambda t, hook: 0 * t)])
        assert torch.allclose(zero, model.module.read.bias.expand(5, 9, 2))


def test_a_copy_has_hook_points_of_its_own(adopted, tokens):
    untrained = copy.deepcopy(adopted.model)
    with torch.no_grad():
        untrained.module.embed.weight.zero_()
    seen = untrained.run_with_cache(tokens)[1]["blocks.0.hook_resid_pre"]
    assert torch.allclose(seen, untrained.module.embed.bias.expand_as(seen))
    assert not torch.equal(adopted.model.run_with_cache(tokens)[1]["blocks.0.hook_resid_pre"], seen)


def test_parts_after_a_place_are_found_and_tuned_on_a_copy(adopted, tiny_task):
    episodes = next(draw(tiny_task, "test", 4, 0))
    after = parameters_downstream(adopted.model, episodes, Site(2, "blocks.1.hook_resid_post", "readout"))
    assert {"module.read.weight", "module.read.bias"} <= after
    assert not any("attend" in name for name in after)
    before = bits(adopted.model.module.read.weight)
    tuned = fine_tune(adopted.model, tiny_task, whole(adopted.model, after), folds(tiny_task, 0)[0], Budget(2, 4), 0)
    assert bits(adopted.model.module.read.weight) == before != bits(tuned.module.read.weight)


def test_answers_alone_are_placed_where_they_belong(net, tiny_task, tokens):
    model = adopt(net, tiny_task, sites={}, call=third_answers).model
    prediction = model(tokens)
    assert torch.equal(prediction[:, 6:], net(tokens)[:, 6:]) and not prediction[:, :6].any()


# ---- folders -------------------------------------------------------------------------------------------------------------
def test_a_saved_network_is_an_ordinary_folder(adopted, tokens, tmp_path):
    folder = adopted.save(tmp_path / "net", note="trained in a paper")
    files = {"config.json", "weights.safetensors", "scores.json", "history.csv", "digests.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == files
    again = load(folder, classes=[Stepped])
    assert bits(again.model(tokens)) == bits(adopted.model(tokens)) and again.run == adopted.run
    assert "trained in a paper" in (folder / "README.md").read_text()
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["step"] == 0 and scores["parameters"] == sum(p.numel() for p in adopted.model.module.parameters())
    assert pd.read_csv(folder / "history.csv")["ood"].item() == pytest.approx(scores["ood"]["score"])


def test_compositions_for_choosing_settings_are_scored_too(net, tiny_task, tmp_path):
    task = dataclasses.replace(tiny_task, validation=1)
    folder = adopt(net, task, sites=SITES, call=third_answers, reinit=Stepped, evaluation_episodes=8).save(tmp_path / "net")
    scores = json.loads((folder / "scores.json").read_text())
    assert set(task.splits) <= set(scores) and "| validation | " in (folder / "README.md").read_text()


def test_a_folder_names_what_it_needs_and_never_where_it_lies(adopted, tmp_path, capsys):
    folder = adopted.save(tmp_path / "net")
    text = (folder / "config.json").read_text()
    assert '"outside": "Stepped"' in text and "test_adopt" not in text and "/" not in text
    with pytest.raises(ConfigError, match=r"--with FILE\.py:Stepped, or load\(folder, classes=\[Stepped\]\)"):
        load(folder)
    for command in (["probe", "generalization", "latent_code"], ["explain"]):
        assert cli.main([*command, str(folder)]) == 1
        assert capsys.readouterr().err.count("--with FILE.py:Stepped") == 1, "once, not once for every probe"


def test_what_is_to_be_typed_again_names_what_to_hand_over_and_what_was_typed(adopted, tmp_path):
    folder = adopted.save(tmp_path / "net")
    arguments = {"episodes": 16, "seed": 0}  # 0 is the default
    recipes.run_probe(recipes.locate("probes", "generalization"), folder, arguments, classes=[Stepped])
    typed = f"compolens probe generalization {folder} --episodes 16 --with FILE.py:Stepped"
    assert tables.again(folder, "generalization") == typed
    (folder / "tables" / "generalization.csv").write_text("metric,value\n")
    assert tables.why_not(folder, "generalization").endswith(f"; measure it again with: {typed}")
    assert tables.again(folder, "patching") == f"compolens probe patching {folder} --with FILE.py:Stepped", "never measured"


def test_functions_are_named_all_at_once(net, tiny_task, tmp_path):
    kept = adopt(net, tiny_task, sites=SITES, call=third_answers, reinit=Stepped, evaluation_episodes=8).save(tmp_path / "net")
    with pytest.raises(ConfigError, match=r"--with FILE\.py:Stepped --with FILE\.py:third_answers"):
        load(kept)
    with pytest.raises(ConfigError, match="third_answers"):
        load(kept, classes=[Stepped])
    assert load(kept, classes=[Stepped, third_answers]).run.architecture.call is third_answers


def test_what_cannot_be_named_is_refused_before_anything_is_written(net, tiny_task, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot describe <lambda>.*def my_function"):
        adopt(net, tiny_task, sites=SITES, call=lambda module, tokens: module(tokens)).save(tmp_path / "net")
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("width", "given", "message"),
    [
        (12, {}, r"these weights do not fit .*arguments=\{…\}\) or built_by="),
        (8, {"arguments": {"widht": 8}}, r"Stepped\(d_in=7, d_out=2, width=8\).* cannot be called as Stepped\(widht=8\)"),
        (8, {"built_by": third_answers}, r"third_answers\(module, tokens\) cannot be called as third_answers\(\)"),
        (8, {"built_by": dict}, r"made a dict, not a torch\.nn\.Module"),
    ],
)
def test_saving_says_what_would_not_build_the_network_again(tiny_task, tmp_path, width, given, message):
    network = adopt(Stepped(width=width).eval(), tiny_task, sites=SITES, **given)
    with pytest.raises(ConfigError, match=message):
        network.save(tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_finished_folder_is_never_overwritten(adopted, tmp_path):
    folder = adopted.save(tmp_path / "net")
    with pytest.raises(ConfigError, match="holds a finished model"):
        adopted.save(folder)


def test_where_no_folder_can_be_made_is_said(adopted, tmp_path):
    (tmp_path / "a_file").touch()
    for place in (tmp_path / "a_file", tmp_path / "a_file" / "model"):
        with pytest.raises(ConfigError, match=r"no folder can be made at .*a_file.*choose another folder"):
            adopted.save(place)


def test_an_adopted_architecture_trains_like_any_other(tiny_task, tmp_path):
    architecture = Adopted(Stepped, sites=SITES, reinit=Stepped)
    run = Run(architecture, tiny_task, steps=2, batch_size=4, evaluations=1, evaluation_episodes=16)
    train(run, tmp_path / "net")
    trained = load(tmp_path / "net", classes=[Stepped])
    weights = [model.module.embed.weight for model in (trained.model, trained.untrained_control(), run.build())]
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[0], weights[1])


# ---- without an untrained control -------------------------------------------------------------------------------------------
PROBES = {
    "generalization": {"episodes": 32},
    "latent_code": {"episodes": 256},
    "patching": {"episodes": 24},
    "code_structure": {"episodes": 64},
    "which_prior": {"episodes": 24, "tangent_episodes": 16, "iterations": 1},
    "inference_or_execution": {"episodes": 32, "fitted": 64, "searched": 8, "search_steps": 2},
}


@pytest.fixture(scope="module")
def saved(tiny_task, tmp_path_factory):
    """Equal weights saved without and with a way to initialise them anew."""
    root = tmp_path_factory.mktemp("adopted")
    sites = {name: at for name, at in SITES.items() if name != "hook_code"}
    for name, reinit in (("without", None), ("with", Stepped)):
        adopt(Stepped().eval(), tiny_task, sites=sites, reinit=reinit, evaluation_episodes=16).save(root / name)
    shutil.copy(root / "with" / "weights.safetensors", root / "without" / "weights.safetensors")
    digests.take(root / "without")
    return root


@pytest.mark.parametrize("name", PROBES)
def test_rows_of_an_untrained_control_that_cannot_be_had_say_so_and_hold_no_number(saved, name):
    tables = {}
    for kind in ("with", "without"):
        path = recipes.run_probe(recipes.locate("probes", name), saved / kind, PROBES[name], classes=(Stepped,))
        tables[kind] = pd.read_csv(path, keep_default_na=True).fillna({"control": "", "note": ""})
    untrained = {kind: table[table["control"].str.contains("untrained")] for kind, table in tables.items()}
    assert len(untrained["without"]) and untrained["with"]["value"].notna().any()
    keys = [column for column in untrained["without"] if column in IDENTITY - {"reference" if name == "which_prior" else ""}]
    there = {kind: {tuple(row) for row in rows[keys].astype(str).to_numpy()} for kind, rows in untrained.items()}
    assert there["without"] == there["with"]
    rows = untrained["without"]
    assert (rows["note"] == f"not available: {NO_UNTRAINED_CONTROL}").all() and (rows["n"] == 0).all()
    counted = {"layer", "n", "step", "weight", "chosen", "effective", "code_width", "n_fitted"}
    measured = rows.select_dtypes("number").drop(columns=[c for c in counted if c in rows])
    assert measured.isna().all(axis=None) and {"value", "lo", "hi"} <= set(measured)
    if name != "which_prior":  # there, learners made from the untrained control are missing
        own = {kind: table[table["control"] == ""]["value"].tolist() for kind, table in tables.items()}
        assert own["without"] == pytest.approx(own["with"], nan_ok=True)


OWN_PROBE = '''
"""How large is the largest answer, and where does it stand?"""
import pandas as pd
from compolens import tables
from compolens.activations.streams import draw

def probe(trained, *, episodes: int = 8):
    """The largest answer. Control: the untrained control."""
    (batch,) = draw(trained.task, "ood", episodes, 0)
    rows = []
    for control, model in trained.with_untrained_control():
        answer = model(batch.tokens)
        found = {"split": "ood", "site": "all", "role": "all", "n": episodes, "where": int(answer.argmax())}
        rows.append(tables.row("largest", answer.max().item(), control=control, **found))
    rows += tables.not_available(rows, trained.why_no_untrained_control, measured=("where",))
    return pd.DataFrame(rows)
'''


def test_a_probe_of_ones_own_names_what_it_takes_from_the_untrained_control(saved, tmp_path):
    (tmp_path / "my_probe.py").write_text(OWN_PROBE)
    found = recipes.load_recipe("probes", tmp_path / "my_probe.py")(load(saved / "without", classes=[Stepped]))
    own, untrained = found[found["control"] == ""].iloc[0], found[found["control"] == "untrained"].iloc[0]
    assert own["where"] >= 0 and pd.notna(own["value"])
    assert untrained[["where", "value"]].isna().all() and untrained["note"] == f"not available: {NO_UNTRAINED_CONTROL}"


def test_a_probe_of_ones_own_that_insists_on_the_untrained_control_does_not_apply(saved, tmp_path):
    asks = OWN_PROBE.replace(
        "trained.with_untrained_control()", '(("", trained.model), ("untrained", trained.untrained_control()))'
    )
    (tmp_path / "my_probe.py").write_text('taken_from_twin = ("where",)\n' + asks)
    with pytest.warns(
        FutureWarning, match=r"taken_from_twin is read no longer; .* tables\.not_available\(rows, why, measured"
    ):
        probe = recipes.load_recipe("probes", tmp_path / "my_probe.py")
    assert set(probe(load(saved / "with", classes=[Stepped]))["control"]) == {"", "untrained"}
    with pytest.raises(DoesNotApply, match=r"reinit=MyNet\); .* goes through trained\.with_untrained_control\(\)"):
        probe(load(saved / "without", classes=[Stepped]))


def test_learners_made_from_the_untrained_control_are_not_available_either(saved):
    trained = load(saved / "without", classes=[Stepped])
    for fit in (FrozenReadout.fit, Linearised.fit):
        with pytest.raises(DoesNotApply, match=r"adopt\(…, reinit=MyNet\)$"):
            fit(trained, episodes=16)
    with pytest.raises(DoesNotApply, match="reinit"):
        trained.untrained_control()
    table, _ = recipes.load_recipe("probes", "which_prior")(trained, **PROBES["which_prior"])
    lazy = table[table["reference"].isin(["frozen features", "linearised net"])]
    assert set(lazy["reference"]) == {"frozen features", "linearised net"}
    assert lazy["value"].isna().all() and lazy["note"].str.startswith("not available: ").all()


def test_a_challenge_leaves_the_untrained_control_out_and_says_so(saved):
    trained = load(saved / "without", classes=[Stepped])
    assert "untrained control" in challenge.left_out(trained)
    assert {s.control for s in challenge.choices(trained)} == {"raw input"}
    with_control = challenge.choices(load(saved / "with", classes=[Stepped]))
    assert {s.control for s in with_control} == {"raw input", "untrained control"}


def test_an_untrained_control_is_initialised_as_the_run_says(net, tiny_task):
    network = adopt(net, tiny_task, sites=SITES, reinit=Stepped)
    before = torch.random.get_rng_state()
    one, two = (network.untrained_control().module.embed.weight for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, net.embed.weight)
    assert torch.equal(before, torch.random.get_rng_state())


class Overflowing(Stepped):
    """Its code divides by a parameter that is 0 as initialised."""

    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.zeros(()))

    def forward(self, tokens, keep=None):
        x = self.embed(tokens)
        code = self.code(x.mean(1) / self.size)
        x = self.between(x + self.attend[0](x, x, value=x)[0])
        x = x + self.attend[1](x, x, value=x)[0]
        return self.read(x) + self.scale(code)[:, None]


def test_an_untrained_control_that_is_not_finite_is_named_in_every_row(tiny_task):
    net = Overflowing().eval()
    with torch.no_grad():
        net.size.fill_(1.0)
    network = adopt(net, tiny_task, sites=SITES, reinit=Overflowing)
    assert "not finite at hook_code, the answers; give a reinit" in network.why_no_untrained_control
    table = recipes.load_recipe("probes", "erase_code")(network, episodes=32)[0]
    untrained = table[table["control"] == "untrained"]
    assert len(untrained) and untrained["value"].isna().all() and untrained["note"].str.contains("not finite").all()
    assert table[table["control"] == ""]["value"].notna().any()
    with pytest.raises(DoesNotApply, match="not finite"):
        network.untrained_control()


# ---- refusals --------------------------------------------------------------------------------------------------------------
def test_a_probe_names_the_site_that_it_lacks(net, tiny_task):
    network = adopt(net, tiny_task, sites={"blocks.0.hook_resid_post": "between"})
    with pytest.raises(DoesNotApply, match=r'"blocks\.0\.hook_resid_pre": \("SUBMODULE", "output"\)'):
        recipes.load_recipe("probes", "patching")(network, episodes=4)
    with pytest.raises(DoesNotApply, match=r'sites=\{"blocks\.0\.attn\.hook_pattern": \("SUBMODULE", "output"\)'):
        network.model.check_site("blocks.0.attn.hook_code")
    with pytest.raises(
        DoesNotApply, match=r"no hook point 'blocks\.0\.hook_resid_pots'; did you mean 'blocks\.0\.hook_resid_post'"
    ):
        network.model.run_with_hooks(torch.zeros(1, 9, 7), fwd_hooks=[("blocks.0.hook_resid_pots", lambda t, hook: t)])


PARTS = ("erase_code", "swap_code", "swap_factor", "inference_or_execution", "latent_code", "nonlinear_code", "code_structure",
         "patching", "predictors", "repair", "task_vectors")  # fmt: skip
"""Probes of the residual stream."""


class Flat(nn.Module):
    """No stream: a hidden layer of the whole episode, and three answers."""

    def __init__(self):
        super().__init__()
        self.hidden, self.read = nn.Linear(63, 5), nn.Linear(5, 6)

    def forward(self, tokens):
        return self.read(self.hidden(tokens.flatten(1)).tanh()).unflatten(1, (3, 2))


def test_without_a_stream_the_answers_are_measured_and_all_else_says_what_to_name(tiny_task):
    with pytest.warns(UserWarning, match=r'sites=\{"blocks\.0\.hook_resid_pre".*else most probes do not apply'):
        network = adopt(Flat().eval(), tiny_task, sites={"hook_hidden": "hidden"}, reinit=Flat)
    table, _ = recipes.load_recipe("probes", "generalization")(network, episodes=8)
    assert table[table["control"] == "untrained"]["value"].notna().any()
    for name in PARTS:
        with pytest.raises(DoesNotApply, match=r'"blocks\.0\.hook_resid_pre": \("SUBMODULE", "output"\)'):
            recipes.load_recipe("probes", name)(network, episodes=8)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_explicit_code_is_enough_for_the_probes_of_codes(tiny_task):
    network = adopt(Flat().eval(), tiny_task, sites={"hook_code": "hidden"}, reinit=Flat)
    for name in ("latent_code", "patching", "code_structure"):
        table, _ = recipes.load_recipe("probes", name)(network, episodes=24)
        assert table[table["site"] == "hook_code"]["value"].notna().any(), name
    with pytest.raises(DoesNotApply, match="whole residual stream"):
        recipes.load_recipe("probes", "erase_code")(network, episodes=24)


@pytest.mark.parametrize("name", ["dual_model", "weight_structure", "transfer", "activation_sparsity", "attention_code"])
def test_a_probe_of_other_parts_does_not_apply(adopted, name):
    with pytest.raises(DoesNotApply):
        recipes.load_recipe("probes", name)(adopted, episodes=4)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"hook_code": "cod"}, r"site 'hook_code': Stepped has no submodule 'cod'; did you mean 'code'"),
        ({"hook_z": ("attend.0", "output", 2)}, r"the output of 'attend\.0' is a tuple of 2 and has no index 2"),
        ({"hook_z": "attend.0"}, r"is a tuple of 2, no tensor; say which part: \('attend\.0', 'output', INDEX\)"),
        ({"hook_q": ("attend.0", "input", "q")}, r"the input of 'attend\.0' .* has no index 'q'; .* 'value'"),
        ({"hook_q": ("attend.0", "inputs")}, r"must be a submodule's name, \(name, 'output'\)"),
        ({"hook_o": "attend.0.out_proj"}, r"'attend\.0\.out_proj' was called 0 times in one forward pass"),
        ({"blocks.1.hook_resid_post": "embed"}, r"numbered from 0 without a gap, got \[1\]"),
        ({"blocks.0.hook_resid_pre": "code"}, r"holds a tensor \(5, 4\); the residual stream is \(batch, positions, width\)"),
        ({"module.hook": "code"}, r"'module' is taken"),
        ({"hook code": "code"}, r"must be named like 'hook_code'"),
    ],
    ids=str,
)
def test_a_site_that_does_not_fit_is_refused(net, tiny_task, sites, message):
    with pytest.raises(ConfigError, match=message.replace(r"\(5, 4\)", r"\(\d, 4\)")):
        adopt(net, tiny_task, sites=sites)


class Compiled(Stepped):
    """What torch.compile leaves on a module that it compiled in place."""

    def __init__(self):
        super().__init__()
        self._compiled_call_impl = self._call_impl


class Wide(Stepped):
    def forward(self, tokens, mask):
        return super().forward(tokens)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda: Stepped(), {}, r"in training mode \(Stepped\).*call \.eval\(\) on it first"),
        (lambda: Stepped, {}, r"got the class Stepped; make one: adopt\(MyNet\(…\)\.eval\(\)"),
        (lambda: nn.Identity().eval(), {"sites": {}}, "has no parameters"),
        (lambda: Compiled().eval(), {}, "was compiled"),
        (
            lambda: Wide().eval(),
            {},
            r"run as module\(tokens\), but Wide\.forward is forward\(tokens, mask\): missing .*'mask'",
        ),
        (
            lambda: Stepped().eval(),
            {"call": lambda tokens: tokens},
            r"call\(module, tokens\), but <lambda> is <lambda>\(tokens\)",
        ),
        (lambda: Stepped().eval(), {"call": failing}, r"failed on tokens \(3, 9, 7\) torch\.float32: RuntimeError: mat1"),
        (lambda: Stepped(d_in=4).eval(), {}, r"failed on tokens \(3, 9, 7\) torch\.float32: RuntimeError"),
        (lambda: Stepped(d_out=3).eval(), {}, r"returned a tensor \(3, 9, 3\); allowed: .*= \(3, 9, 2\) or .*= \(3, 3, 2\)"),
        (lambda: Stepped().eval(), {"call": lambda m, t: (m(t), 1)}, r"returned a tuple of 2; allowed: tensors"),
        (lambda: Stepped().eval(), {"reinit": 3}, "reinit must be a class or a function, got 3"),
        (lambda: Stepped().eval(), {"roles": {"context": [0]}}, "at least 'context' and 'readout'"),
        (lambda: Stepped().eval(), {"roles": {"context": [0], "readout": [9]}}, "roles name position 9"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(tiny_task, make, settings, message):
    with pytest.raises(ConfigError, match=message):
        adopt(make(), tiny_task, **{"sites": SITES} | settings)


def test_a_stream_of_another_length_needs_its_roles(tiny_task):
    class Shorter(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.read = nn.Linear(7, 4), nn.Linear(4, 2)

        def forward(self, tokens):
            return self.read(self.embed(tokens[:, :7])).mean(1, keepdim=True).expand(-1, 9, -1)

    sites = {"blocks.0.hook_resid_pre": "embed"}
    with pytest.raises(
        ConfigError, match=r"has 7 positions, an episode 9; .* roles=\{'context': \[0, 1, …\], 'readout': \[…\]\}"
    ):
        adopt(Shorter().eval(), tiny_task, sites=sites)
    roles = {"context": range(6), "readout": [6]}
    assert adopt(Shorter().eval(), tiny_task, sites=sites, roles=roles).model.roles == {
        "context": [0, 1, 2, 3, 4, 5],
        "readout": [6],
    }
    for position in (7, -8):
        with pytest.raises(ConfigError, match=f"roles name position {position}, but the residual stream has positions 0 to 6"):
            adopt(Shorter().eval(), tiny_task, sites=sites, roles={"context": range(6), "readout": [position]})


# ---- answers that are none of an episode's own ------------------------------------------------------------------------------
class SequenceFirst(nn.Module):
    """torch's encoder as it is built, fed (batch, seq, width): attention goes from episode to episode."""

    def __init__(self, batch_first=False):
        super().__init__()
        self.embed, self.read = nn.Linear(7, 16), nn.Linear(16, 2)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.read(self.encoder(self.embed(tokens)))


class Turned(SequenceFirst):
    """The same, fed as it wants to be."""

    def forward(self, tokens):
        return self.read(self.encoder(self.embed(tokens).transpose(0, 1))).transpose(0, 1)


class Memory(nn.Module):
    """A recurrence over positions, normalised as in training."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.embed, self.norm, self.read = nn.Linear(7, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.rnn = nn.LSTM(8, 8, batch_first=batch_first)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        return self.read(self.rnn(x)[0])


class Dropped(Stepped):
    """A dropout that stays on."""

    def forward(self, tokens):
        return nn.functional.dropout(super().forward(tokens), 0.5, training=True)


class Keeping(Stepped):
    """Its answers go on from those of the call before."""

    last = 0.0

    def forward(self, tokens):
        answers = super().forward(tokens) + self.last
        self.last = answers.mean().detach()
        return answers


class Normed(Stepped):
    def forward(self, tokens):
        x = super().forward(tokens)
        return (x - x.mean((0, 1))) / x.std((0, 1))


class Squeezed(Stepped):
    def forward(self, tokens):
        return super().forward(tokens).squeeze()


class Undefined(Stepped):
    def forward(self, tokens):
        return super().forward(tokens) * torch.where(tokens[:, :1, :1] > 0, torch.nan, 1.0)


ENCODED = {"blocks.0.hook_resid_pre": ("encoder", "input"), "blocks.0.hook_resid_post": "encoder"}
RECURRENT = {"blocks.0.hook_resid_pre": "embed", "blocks.0.hook_resid_post": ("rnn", "output", 0)}


@pytest.mark.parametrize(
    ("make", "sites", "message"),
    [
        (SequenceFirst, ENCODED, r"SequenceFirst depends on the rest of the batch: alone, .* batch_first=True: build them so"),
        (lambda: Memory(batch_first=False), RECURRENT, r"Memory depends on the rest of the batch.* batch_first=True"),
        (Normed, SITES, r"Normed depends on the rest of the batch.* a normalisation must use statistics of training alone"),
        (
            Turned,
            ENCODED,
            r"\(9, 3, 16\) for 3 episodes; .* here it is the second\. .*batch_first=True: build them so, and the",
        ),
        (Dropped, SITES, r"Dropped is not deterministic: asked again, .*dropout\(x, p, self\.training\)"),
        (Keeping, SITES, r"Keeping is not deterministic: .* keep no state"),
        (Squeezed, SITES, r"Squeezed answers 3 episodes together and fails on one of them alone: .* \.squeeze\(-1\)"),
        (Undefined, SITES, r"Undefined answers NaN, not a number, to [123] of 3 episodes; look for weights"),
        (lambda: nn.DataParallel(Stepped()), {}, r"DataParallel spreads a network .*: adopt\(net\.module, …\)"),
    ],
)
def test_an_answer_that_is_not_a_function_of_its_episode_is_refused_with_a_way_out(tiny_task, make, sites, message):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make().eval()
    with pytest.raises(ConfigError, match=message):
        adopt(network, tiny_task, sites=sites)


@pytest.mark.filterwarnings("ignore:.*goes round")
@pytest.mark.parametrize(
    ("network", "sites"),
    [(SequenceFirst(batch_first=True), ENCODED), (Memory(), RECURRENT), (Stepped().double().float(), SITES)],
    ids=["batch first", "recurrent and normalised", "attention"],
)
def test_rounding_and_statistics_of_training_are_no_dependence_on_the_batch(tiny_task, network, sites):
    built = {"batch_first": True} if isinstance(network, SequenceFirst) else {}
    if isinstance(network, SequenceFirst):
        network.load_state_dict(SequenceFirst().state_dict())  # the weights fit, as the error says
    network = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    assert adopt(network.eval(), tiny_task, sites=sites, arguments=built).model.module is network


# ---- weights of less than single precision ----------------------------------------------------------------------------------
def as_weights(module, tokens):
    return module(tokens.to(next(module.parameters()).dtype)).float()


def made_half():
    return Stepped().half()


def test_weights_of_another_precision_are_named_where_they_do_not_fit(net, tiny_task, tmp_path):
    half = copy.deepcopy(net).half()
    with pytest.raises(
        ConfigError, match=r"weights are torch\.float16, and tokens are torch\.float32; adopt net\.float\(\), or"
    ):
        adopt(half, tiny_task, sites=SITES)
    with pytest.raises(
        ConfigError, match=r"are torch\.float32, and of this one torch\.float16; adopt net\.float\(\), or give built"
    ):
        adopt(half, tiny_task, sites=SITES, call=as_weights).save(tmp_path / "net")
    with pytest.raises(
        ConfigError, match=r"fails where this one answers \(RuntimeError: .*; adopt net\.float\(\), or give built_by"
    ):
        adopt(half, tiny_task, sites=SITES, call=lambda module, tokens: module(tokens.half()).float())._check_rebuilt()
    assert not (tmp_path / "net").exists()


def test_ids_are_still_told_where_they_are_what_is_missing(task_of_ids):
    class Embeds(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(task_of_ids.d_in, task_of_ids.d_out)

        def forward(self, ids):
            return self.embed(ids)

    for network in (Embeds(), Embeds().half()):
        with pytest.raises(ConfigError, match=r"tokens\.argmax\(-1\) are the ids$"):
            adopt(network.eval(), task_of_ids, sites={"blocks.0.hook_resid_pre": "embed"})


@pytest.fixture
def task_of_ids():
    return compolens.tasks.FewShot(n_examples=1, operations=("copy", "upper"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("probe", ["swap_code", "swap_factor"])
def test_subspaces_are_searched_in_half_precision_too(tiny_task, probe):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = adopt(made_half().eval(), tiny_task, sites=SITES, call=as_weights, built_by=made_half)
    table, _ = recipes.load_recipe("probes", probe)(network, episodes=24, search_steps=2)
    assert table["value"].notna().any()


def test_with_names_classes_and_functions_of_one_file_run_once(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Net(torch.nn.Linear): ...\ndef made(): return Net(1, 1)\nnumber = 3\n"
    )
    net, made = cli.flags.outside([f"{tmp_path}/mine.py:Net", f"{tmp_path}/mine.py:made"])
    assert isinstance(made(), net)
    with pytest.raises(ConfigError, match="number is a int, not a class or a function"):
        cli.flags.outside([f"{tmp_path}/mine.py:number"])


# ---- three networks, each to a report in at most 20 lines ------------------------------------------------------------------
ATTENTION = """
import torch
from compolens import Hyperteacher, adopt

class MyNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.read = torch.nn.Linear(7, 8), torch.nn.Linear(8, 2)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.read(x + self.attention(x, x, x)[0])

sites = {"blocks.0.hook_resid_pre": "embed", "blocks.0.hook_resid_post": ("read", "input")}
task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
if __name__ == "__main__":
    adopt(MyNet().eval(), task, sites=sites, reinit=MyNet, evaluation_episodes=16).save("net")
"""
TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2ForTokenClassification
from compolens import Hyperteacher, adopt

def MyNet():
    return GPT2ForTokenClassification(GPT2Config(vocab_size=1, n_embd=8, n_layer=2, n_head=2, n_positions=9, num_labels=2))

def my_call(module, tokens):
    return module(inputs_embeds=torch.nn.functional.pad(tokens, (0, 1))).logits

sites = {"blocks.0.hook_resid_pre": ("transformer.h.0", "input")}
sites |= {f"blocks.{i}.hook_resid_post": f"transformer.h.{i}" for i in range(2)}
task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
if __name__ == "__main__":
    network = adopt(MyNet().eval(), task, sites=sites, call=my_call, built_by=MyNet, reinit=MyNet, evaluation_episodes=16)
    network.save("net")
"""
BRIDGE = """
import torch
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
from transformers import GPT2Config, GPT2LMHeadModel
from compolens import Hyperteacher, adopt

def MyNet():
    config = GPT2Config(vocab_size=2, n_embd=8, n_layer=2, n_head=2, n_positions=9)
    return build_bridge_from_module(GPT2LMHeadModel(config), "GPT2LMHeadModel", hf_config=config)

def my_call(module, tokens):
    return module.original_model(inputs_embeds=torch.nn.functional.pad(tokens, (0, 1))).logits

sites = {"blocks.0.hook_resid_pre": "blocks.0.hook_in"}
sites |= {f"blocks.{i}.hook_resid_post": f"blocks.{i}.hook_out" for i in range(2)}
task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
if __name__ == "__main__":
    network = adopt(MyNet().eval(), task, sites=sites, call=my_call, built_by=MyNet, reinit=MyNet, evaluation_episodes=16)
    network.save("net")
"""


@pytest.mark.parametrize("story", [ATTENTION, TRANSFORMERS, BRIDGE], ids=["attention", "transformers", "bridge"])
def test_a_network_from_another_directory_reaches_a_report(story, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "elsewhere" / "my_net.py"
    place.write_text(story)
    assert len([line for line in story.splitlines() if line.strip()]) + 2 <= 20
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(place), run_name="__main__")
    names = recipes.load_file(place)
    mine = [word for name in ("MyNet", "my_call") if hasattr(names, name) for word in ("--with", f"{place}:{name}")]
    assert cli.main(["probe", "generalization", "patching", "net", *mine, "--episodes", "12"]) == 0
    assert cli.main(["report", "net", "-o", "report.html", *mine]) == 0
    assert "MyNet on Hyperteacher" in capsys.readouterr().out and "MyNet" in (tmp_path / "report.html").read_text()
    recovered = pd.read_csv(tmp_path / "net" / "tables" / "patching.csv")
    assert recovered[recovered["role"] == "readout"]["value"].notna().all()
    trained = compolens.load("net", classes=[value for value in (names.MyNet, getattr(names, "my_call", None)) if value])
    assert trained.model.cfg.n_layers == len(residual_sites(trained.model)) - 1


# ---- attention, named once ---------------------------------------------------------------------------------------------
class Heads(nn.Module):
    """One layer of attention that shows its weights (batch, head, query, key) and what its heads say."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out, self.read = nn.Linear(7, 8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 2)
        self.pattern, self.z, self.turned, self.after = (nn.Identity() for _ in range(4))

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        z = self.turned(self.pattern((q @ k.transpose(-1, -2)).softmax(-1)) @ v)
        return self.read(self.after(x + self.out(self.z(z.transpose(1, 2)).flatten(2))))


STREAM = {"blocks.0.hook_resid_pre": "embed", "blocks.0.hook_resid_post": "after"}


@pytest.mark.filterwarnings("ignore:.*goes round")
def test_where_attention_weights_are_named_the_code_of_a_pair_is_there_too(tiny_task, tokens):
    model = adopt(
        Heads().eval(), tiny_task, sites=STREAM | {"blocks.0.attn.hook_pattern": "pattern"}, evaluation_episodes=16
    ).model
    _, cache = model.run_with_cache(tokens)
    pattern, code = cache["blocks.0.attn.hook_pattern"], cache["blocks.0.attn.hook_code"]
    assert code.shape == (5, 9, 9, 2) and torch.equal(code, pattern.permute(0, 2, 3, 1))
    by_code = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_code", lambda t, hook: t.roll(1, 2))])
    by_pattern = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_pattern", lambda t, hook: t.roll(1, 3))])
    assert torch.equal(by_code, by_pattern) and not torch.equal(by_code, model(tokens))


@pytest.mark.filterwarnings("ignore:.*goes round")
@pytest.mark.parametrize(
    ("name", "at", "told"),
    [
        ("attn.hook_code", "pattern", r"\(batch, query, key, head\); where hook_pattern is named, it is there by itself"),
        ("attn.hook_z", "turned", r"\(batch, position, head, d_head\)"),
        ("attn.hook_pattern", "z", r"\(batch, head, query, key\)"),
        ("hook_pattern", "pattern", r"did you mean 'blocks\.0\.attn\.hook_pattern'"),
        ("hook_residpre", "embed", r"did you mean 'blocks\.0\.hook_resid_pre'"),
    ],
)
def test_a_site_whose_axes_or_name_are_nearly_right_is_told(tiny_task, name, at, told):
    with pytest.warns(UserWarning, match=told):
        adopt(Heads().eval(), tiny_task, sites=STREAM | {f"blocks.0.{name}": at}, evaluation_episodes=16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": ["embed"]}, r"sites must be a mapping from hook names to submodules, such as"),
        ({"sites": 3}, r"sites must be a mapping .*; got 3"),
        ({"sites": {0: "embed"}}, r"a site's name must be a word like 'blocks\.0\.hook_resid_post', got 0"),
        ({"roles": {"context": 1, "readout": [8]}}, r"roles\['context'\] must list positions, such as \[0, 1\]; got 1"),
        ({"reinit": lambda width: Heads()}, r"reinit\(\), but .* missing a required argument: 'width'; give arguments="),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(tiny_task, given, message):
    with pytest.raises(ConfigError, match=message):
        adopt(Heads().eval(), tiny_task, **{"sites": STREAM, **given})


def test_a_submodule_itself_is_no_site_and_is_not_printed_in_full(tiny_task):
    net = Heads().eval()
    with pytest.raises(ConfigError, match=r"got a Linear$"):
        adopt(net, tiny_task, sites={"blocks.0.hook_resid_pre": net.embed})


# ---- what nobody notices by looking at the numbers -------------------------------------------------------------------
def test_an_untrained_control_with_the_weights_of_the_model_is_none(net, tiny_task):
    network = adopt(net, tiny_task, sites=SITES, reinit=lambda: copy.deepcopy(net))
    assert network.why_no_untrained_control == (
        "the untrained control has the very weights of the model; give a reinit that makes fresh ones"
    )
    assert [control for control, _ in network.with_untrained_control()] == [""]
    assert adopt(net, tiny_task, sites=SITES, reinit=Stepped).why_no_untrained_control == ""


def test_a_network_of_shapes_alone_is_refused(tiny_task):
    with torch.device("meta"):
        network = Stepped().eval()
    with pytest.raises(ConfigError, match=r"Stepped has shapes and no weights .device 'meta'.; load them first"):
        adopt(network, tiny_task, sites=SITES)


class Halved(Stepped):
    """Takes the tokens as they are, and answers in bfloat16."""

    def forward(self, tokens, keep=None):
        return super().forward(tokens.bfloat16())


def test_a_network_in_bfloat16_is_measured(tiny_task, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = Halved().eval().bfloat16()
    trained = adopt(network, tiny_task, sites=SITES, evaluation_episodes=64)
    table, episodes = recipes.load_recipe("probes", "generalization")(trained, episodes=16)
    assert table[table["control"] == ""]["value"].notna().all() and len(episodes)


class SequenceFirst(nn.Module):
    """Attends along the batch, and answers from its last token, which is the same in every episode."""

    def __init__(self):
        super().__init__()
        self.embed, self.read = nn.Linear(9, 8), nn.Linear(8, 5)
        self.attend, self.between = nn.MultiheadAttention(8, 2), nn.Identity()

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.read(self.between(x + self.attend(x, x, x)[0]))


def test_a_network_that_mixes_episodes_where_no_answer_shows_it_is_refused(tmp_path):
    rng = torch.Generator().manual_seed(0)
    tokens = torch.cat(
        [torch.randperm(512, generator=rng)[:64, None] // torch.tensor([64, 8, 1]) % 8, torch.full((64, 1), 8)], dim=1
    )
    split = ["train"] * 32 + ["test"] * 16 + ["ood"] * 16
    composition = [i % 4 + 4 * (s == "ood") for i, s in enumerate(split)]
    task = FixedEpisodes.write(
        tmp_path / "episodes", tokens=tokens.numpy(), targets=(tokens[:, 0] % 5).numpy(), composition=composition, split=split,
        at_least=1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SequenceFirst().eval()
    with pytest.raises(ConfigError, match=r"what stands at blocks.0.hook_resid_post depends on the rest .* batch_first=True"):
        adopt(network, task, sites={"blocks.0.hook_resid_post": "between"})
