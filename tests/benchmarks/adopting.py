"""What adopting a network costs of its forward pass: with the hook points at rest, and with all of them read."""

from __future__ import annotations

import torch
from timing import medians, show, tell
from torch import Tensor, nn

from compolens import Hyperteacher, adopt
from compolens.activations.streams import draw


class Plain(nn.Module):
    """Attention and MLP, layer by layer, none of which torch can fuse."""

    def __init__(self, d_in: int, d_out: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.embed, self.read = nn.Linear(d_in, width), nn.Linear(width, d_out)
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(n_layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)) for _ in range(n_layers)
        )
        self.leave = nn.ModuleList(nn.Identity() for _ in range(n_layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for attend, mlp, leave in zip(self.attend, self.mlp, self.leave, strict=True):
            x = x + attend(x, x, x, need_weights=False)[0]
            x = leave(x + mlp(x))
        return self.read(x)


def bench_adopting(batch: int = 64, width: int = 64, n_layers: int = 3, repeats: int = 301) -> None:
    task = Hyperteacher()
    network = Plain(task.d_in, task.d_out, width, n_layers).eval()
    sites: dict[str, object] = {"blocks.0.hook_resid_pre": "embed"}
    sites |= {f"blocks.{i}.hook_resid_post": f"leave.{i}" for i in range(n_layers)}
    sites |= {f"blocks.{i}.attn.hook_z": (f"attend.{i}", "output", 0) for i in range(n_layers)}
    model = adopt(network, task, sites=sites).model
    tokens = next(draw(task, "test", batch, 0, batch=batch)).tokens
    with torch.no_grad():
        assert torch.equal(network(tokens), model(tokens))
        functions = (lambda: network(tokens), lambda: model(tokens), lambda: model.run_with_cache(tokens))
        bare, rest, read = medians(repeats, *functions)
    what = f"an adopted network of {n_layers} layers, width {width}, {batch} episodes"
    show(f"{what} / the bare one", f"{rest / bare:.3f}", "<= 1.03", rest <= 1.03 * bare)
    tell(f"   the same with all {len(sites)} hook points read", f"{read / bare:.3f}")


ADOPTING = (bench_adopting,)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for bench in ADOPTING:
        bench()
