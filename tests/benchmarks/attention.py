"""S-RAVEN and the attention variants at the small size of 2406.05816: batch 128, 36 tokens, 4 layers, 16 heads of width 4."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from timing import medians, show, tell
from torch import Tensor, nn

from compolens import (
    HYLA,
    CalibratedThreshold,
    LearnedThreshold,
    LinearAttention,
    OutputTransfer,
    ReferenceAdamW,
    RelativeTransfer,
    Run,
    SoftmaxTransformer,
    SparseCoding,
    SRaven,
    train,
)
from compolens.models.operands import full
from compolens.models.transformer import TransformerArchitecture
from compolens.training import Progress
from compolens.training.machine import at_work, products

BATCH = 128
TASK = SRaven(n_features=4, n_values=8)
SMALL: dict[str, Any] = {
    "n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": TASK.seq,
}  # fmt: skip


class TorchEncoder(nn.Module):
    """torch's own encoder with a linear embedding and head: what one would write without this package.

    Its heads are d_model / n_heads = 8 wide, where ours are 4; it has no relative bias, no hook points, and exact GELU.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        width = SMALL["d_model"]
        layer = nn.TransformerEncoderLayer(
            width, SMALL["n_heads"], SMALL["d_mlp"], dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embed, self.unembed = nn.Linear(d_in, width), nn.Linear(width, d_out)
        self.blocks = nn.TransformerEncoder(layer, SMALL["n_layers"], nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.blocks(self.embed(tokens)))


Lossy = Callable[[Tensor, Tensor], Tensor]
"""tokens, targets -> loss."""


def training_step(
    model: nn.Module,
    answers_only: bool = False,
    precision: str = "float32",
    made: Callable[[Lossy], Lossy] = lambda lossy: lossy,
) -> Callable[[], None]:
    """Forward, loss, backward and fused AdamW, always on the same batch; `made` makes the first two quicker: torch.compile."""
    optimizer, predict = ReferenceAdamW().build(model), model.answer if answers_only else model
    episodes = TASK.sample(BATCH, "train", TASK.rng(0, "train"))

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with products(precision, "cpu"):
            prediction = predict(tokens)
        return TASK.loss(full(prediction), targets)

    lossy = made(loss_of)

    def step() -> None:
        loss = lossy(episodes.tokens, episodes.targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def product_flops(d_head: int, d_value: int, mixes: int = 1) -> int:
    """Multiplications and additions in the matrix products of one training step; mixes: how often the code meets a value.

    Forward, a product of (a, b) and (b, c) costs 2abc. Backward, one as large gives the gradient of either factor, hence
    three times the forward cost; the tokens need no gradient, hence twice for the embedding.
    """
    tokens, pairs = BATCH * TASK.seq, BATCH * SMALL["n_heads"] * TASK.seq**2
    d_model, heads = SMALL["d_model"], SMALL["n_heads"]
    projections = 2 * tokens * d_model * heads * (2 * d_head + 2 * d_value)  # Q and K; V and O
    attention = 2 * pairs * (d_head + mixes * d_value)
    mlp = 2 * 2 * tokens * d_model * SMALL["d_mlp"]
    embed, unembed = 2 * tokens * TASK.d_in * d_model, 2 * tokens * d_model * TASK.d_out
    return 3 * (SMALL["n_layers"] * (projections + attention + mlp) + unembed) + 2 * embed


def bench_sraven_generation() -> None:
    steps = count()

    def generate() -> None:
        TASK.sample(BATCH, "train", TASK.rng(0, "train", next(steps)))

    (alone,) = medians(1500, generate)
    show(f"S-RAVEN instances per second, batches of {BATCH}", f"{BATCH / alone:,.0f}", ">= 500,000", BATCH / alone >= 500_000)
    made, trained = medians(20, generate, training_step(SoftmaxTransformer(**SMALL).build(**TASK.dimensions)))
    show("generating an S-RAVEN batch / training step", f"{made / trained:.4f}", "<= 0.02", made / trained <= 0.02)


def bench_steps(repeats: int = 11) -> None:
    """Training steps beside torch's encoder, and beside their matrix products at the speed measured for one large product.

    All of them in a process that keeps its memory, as `train` does."""
    compared = {  # name: architecture, bars in single and in mixed precision, how often the code meets a value
        "SoftmaxTransformer": (SoftmaxTransformer(**SMALL), 0.66, 0.47, 1),
        "LinearAttention": (LinearAttention(**SMALL), 0.60, 0.40, 1),
        "HYLA": (HYLA(**SMALL), 0.95, 0.66, 2),
    }
    models = [architecture.build(**TASK.dimensions) for architecture, *_ in compared.values()]
    wide = SoftmaxTransformer(**{**SMALL, "d_head": 8, "d_value": 8}).build(**TASK.dimensions)
    encoder = TorchEncoder(TASK.d_in, TASK.d_out)
    sizes = (512, 1024)
    squares = [torch.randn(n, n) for n in sizes]
    with at_work("cpu"):
        times = medians(
            repeats,
            training_step(encoder),
            training_step(encoder, precision="bfloat16"),
            training_step(wide),
            *[training_step(model) for model in models],
            *[training_step(model, precision="bfloat16") for model in models],
            *[training_step(model, True, "bfloat16") for model in models],
            *[lambda square=square: torch.mm(square, square) for square in squares],
        )
    plain, autocast, as_wide, *rest = times[: -len(sizes)]
    single, mixed, shortcut = rest[:3], rest[3:6], rest[6:]
    peak = max(2 * n**3 / seconds for n, seconds in zip(sizes, times[-len(sizes) :], strict=True))
    for i, (name, (_, bar, mixed_bar, mixes)) in enumerate(compared.items()):
        for precision, seconds, allowed in (("float32", single[i], bar), ("bfloat16", mixed[i], mixed_bar)):
            what = f"training step, {name}, {precision} / torch.nn.TransformerEncoder, float32"
            show(what, f"{seconds / plain:.2f}", f"<= {allowed:.2f}", seconds / plain <= allowed)
        products_alone = product_flops(SMALL["d_head"], SMALL["d_value"], mixes) / peak
        tell("   bfloat16 with its last block at the answers only / encoder", f"{shortcut[i] / plain:.2f}")
        tell(f"   float32 / its matrix products at torch.mm's {peak / 1e9:.0f} GFLOP/s", f"{single[i] / products_alone:.2f}")
    tell("   the encoder itself under autocast to bfloat16 / in float32", f"{autocast / plain:.2f}")
    tell("training step, SoftmaxTransformer with the encoder's head width of 8 / encoder", f"{as_wide / plain:.2f}")
    tell("   encoder's step / its matrix products", f"{plain / (product_flops(8, 8) / peak):.2f}")
    tell(f"   encoder's step in CPU seconds, {BATCH} x {TASK.seq} tokens", f"{plain:.3f}")


def bench_compiled(repeats: int = 9) -> None:
    """The step with forward and loss compiled by torch, beside the plain one; hooks see nothing of a compiled model."""
    for architecture in (SoftmaxTransformer, HYLA):
        for precision in ("bfloat16", "float32"):
            times = []
            for made in (lambda lossy: lossy, torch.compile):
                step = training_step(architecture(**SMALL).build(**TASK.dimensions), True, precision, made)
                taken = []
                with at_work("cpu"):
                    for _ in range(repeats + 3):
                        start = time.perf_counter()
                        step()
                        taken.append(time.perf_counter() - start)
                times.append(min(taken[3:]))
            tell(f"training step, {architecture.__name__}, {precision}, compiled / not", f"{times[1] / times[0]:.2f}")


def bench_sparse_coding(repeats: int = 9) -> None:
    """Training steps of sparse-coding attention in its variants beside softmax attention of the same size and norm."""
    variants: dict[str, dict[str, Any]] = {
        "fixed threshold": {},
        "learned threshold": {"threshold": LearnedThreshold()},
        "calibrated threshold": {"threshold": CalibratedThreshold()},
        "fixed, output transfer": {"transfer": OutputTransfer()},
        "fixed, relative transfer": {"transfer": RelativeTransfer()},
    }
    steps = [training_step(SparseCoding(**SMALL, **settings).build(**TASK.dimensions)) for settings in variants.values()]
    softmax, *sparse = medians(
        repeats, training_step(SoftmaxTransformer(**SMALL, rms_norm=True).build(**TASK.dimensions)), *steps
    )
    for name, seconds in zip(variants, sparse, strict=True):
        ratio = seconds / softmax
        show(f"training step, SparseCoding ({name}) / SoftmaxTransformer", f"{ratio:.2f}", "<= 1.25", ratio <= 1.25)


def saved_bytes(architecture: TransformerArchitecture) -> tuple[int, int]:
    """What one attention layer keeps for backward: bytes of distinct storages without parameters; of every tensor packed."""
    layer = replace(architecture, n_layers=1).build(**TASK.dimensions).blocks[0].attn
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)  # kept alive, so that no address is used twice
        return tensor

    x = torch.randn(BATCH, TASK.seq, SMALL["d_model"], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in packed}
    assert output.requires_grad
    return sum(size for at, size in storages.items() if at not in own), sum(tensor.nbytes for tensor in packed)


def bench_saved_bytes() -> None:
    (softmax, _), (hyla, every) = (saved_bytes(architecture(**SMALL)) for architecture in (SoftmaxTransformer, HYLA))
    allowed = softmax + 2 * BATCH * TASK.seq**2 * (SMALL["d_value"] + SMALL["n_heads"]) * 4
    show(
        f"bytes kept for backward, HYLA layer ({hyla / 2**20:.0f} MiB) / softmax ({softmax / 2**20:.0f}) + 2 codes and hidden",
        f"{hyla / allowed:.3f}",
        "<= 1",
        hyla <= allowed,
    )
    tell("   the same, every tensor counted as often as it is kept", f"{every / allowed:.3f}")


def bench_posterior(n: int = 2048, repeats: int = 5) -> None:
    batches = [TASK.sample(n, "ood", TASK.rng(0, "ood", step)) for step in range(repeats + 1)]  # answers are remembered
    fresh = iter(batches)
    (seconds,) = medians(repeats, lambda: TASK.posterior(next(fresh)))
    show(f"S-RAVEN posterior, instances per second, {n} at a time", f"{n / seconds:,.0f}", ">= 2,000", n / seconds >= 2000)


def steps_per_second(architecture: TransformerArchitecture, device: str, start: int = 300, end: int = 1500) -> float:
    """Wall-clock speed of `train` between two steps, multiples of 20, with data drawn on the device; without evaluations."""
    run = Run(
        architecture, TASK, steps=end + 20, batch_size=BATCH, optimizer=ReferenceAdamW(), evaluations=1,
        evaluation_episodes=64, data_device=device,
    )  # fmt: skip
    at: dict[int, float] = {}

    def progress(now: Progress) -> None:
        if now.step in (start, end):
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # steps may only have been handed to the device
            at[now.step] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        train(run, Path(folder) / "run", device=device, progress=progress, save_every=1e9)
    return (end - start) / (at[end] - at[start])


def several_per_second(
    architectures: Sequence[TransformerArchitecture], device: str, start: int = 300, end: int = 1500
) -> float:
    """The speed of trainings that run at the same time, a process each, added up."""
    with ProcessPoolExecutor(len(architectures), get_context("spawn")) as pool:
        asked = [pool.submit(steps_per_second, architecture, device, start, end) for architecture in architectures]
        return sum(one.result() for one in asked)


def bench_gpu(architectures: Sequence[type[TransformerArchitecture]] = (SoftmaxTransformer, HYLA)) -> None:
    """One training alone, and four at a time: with NVIDIA's MPS if its daemon is there, else in turns."""
    if not torch.cuda.is_available():
        print("training steps per second on a GPU: no GPU: not measured", flush=True)
        return
    for architecture in architectures:
        speed = steps_per_second(architecture(**SMALL), "cuda")
        show(f"training steps per second on a GPU, {architecture.__name__}", f"{speed:,.0f}", ">= 1,000", speed >= 1000)
    four = several_per_second([architecture(**SMALL) for architecture in (*architectures, *architectures)], "cuda", end=900)
    tell("the same, two of each at a time, added up", f"{four:,.0f}")


BENCHES = (
    bench_sraven_generation,
    bench_steps,
    bench_compiled,
    bench_sparse_coding,
    bench_saved_bytes,
    bench_posterior,
    bench_gpu,
)
