"""Does coefficient transfer help a frozen language model on a pattern it knows? (python -m …)

    a1 b4 c2 b4 | a5 b0 c3 b0 | a2 b3 c0 b3 | a4 b1 c5 b1          hidden: "the second one", in all four blocks

A block is one symbol of each of three kinds, then one of the three again; which one is drawn per sequence and the same in
its four blocks. A small Llama is trained on all answers, frozen, and given lambda, which is fitted to the last answer; the
table has the loss of the last answer on sequences never seen. log 3 is what knowing the format without the rule gives, 0 what
knowing the rule gives. Two base models per seed: one that has only begun to use the rule, and one that does. The control
transfers from shuffled rows: as many parameters, the same fit, no alignment. What dividing the logits by one fitted number
gives stands beside it, since an unsure model gains from that alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from compolens.foundation.configs import require
from compolens.language_models.transfer import OutputTransferAdapter, RelativeTransferAdapter, TransferAdapter, fit
from compolens.language_models.wrapped import IGNORED, Batch, Blocks

KINDS, SYMBOLS, N_BLOCKS = 3, 6, 4
LENGTH = KINDS + 1
BLOCKS = Blocks.of([(LENGTH * block, LENGTH * (block + 1)) for block in range(N_BLOCKS)])


class Sizes(NamedTuple):
    """What a study costs.

    Args:
        base_steps: updates of the base model.
        batch_size: sequences of an update.
        lambda_steps: updates of lambda.
        fitted_on: sequences that lambda is fitted to.
        held_out: sequences never seen.
    """

    base_steps: int = 400
    batch_size: int = 64
    lambda_steps: int = 60
    fitted_on: int = 512
    held_out: int = 4096


def sequences(n: int, rng: torch.Generator) -> Tensor:
    """Four blocks of three symbols and an answer; symbol s of kind k is the token k * SYMBOLS + s.

    Args:
        n: how many.
        rng: the generator.

    Returns:
        (n, 16) tokens.
    """
    which = torch.randint(KINDS, (n, 1, 1), generator=rng).expand(n, N_BLOCKS, 1)
    shown = torch.randint(SYMBOLS, (n, N_BLOCKS, KINDS), generator=rng) + SYMBOLS * torch.arange(KINDS)
    return torch.cat([shown, shown.gather(2, which)], 2).flatten(1)


def last_answer(tokens: Tensor) -> Batch:
    """A batch of `tokens` (n, 16) that scores the target block's answer alone."""
    labels = torch.full_like(tokens, IGNORED)
    labels[:, -1] = tokens[:, -1]
    return Batch(tokens, BLOCKS, labels=labels)


def base_model(rng: torch.Generator) -> Any:
    """A Llama of two layers and some 6,000 parameters, initialised at random by `rng`."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=KINDS * SYMBOLS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH * N_BLOCKS,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator; ours are drawn below
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=rng)
    return model.eval()


def train_base(model: Any, sizes: Sizes, rng: torch.Generator) -> None:
    """Adam on the answers of all blocks, fresh sequences in every update; the rate falls linearly to 0.

    Args:
        model: trained in place.
        sizes: updates and sequences.
        rng: draws the sequences.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    answers = torch.arange(LENGTH - 1, LENGTH * N_BLOCKS, LENGTH)
    for step in range(sizes.base_steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / sizes.base_steps)
        tokens = sequences(sizes.batch_size, rng)
        logits = model(tokens, use_cache=False).logits[:, answers - 1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, answers].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure(adapter: TransferAdapter, batch: Batch) -> tuple[float, float]:
    """The last answer, with the adapter's transfer.

    Args:
        adapter: on a model.
        batch: the sequences.

    Returns:
        Loss (nats) and accuracy.
    """
    answer = batch.input_ids[:, -1]
    with torch.no_grad(), adapter.blocks(batch.blocks):
        logits = adapter.model(batch.input_ids, use_cache=False).logits[:, -2]
    return nn.functional.cross_entropy(logits, answer).item(), (logits.argmax(-1) == answer).float().mean().item()


def tempered_loss(model: Any, fitted: Batch, held_out: Batch, steps: int) -> float:
    """Loss of the held-out last answers after dividing the logits by one number, fitted where lambda is.

    Args:
        model: the base model.
        fitted: sequences that the number is fitted to.
        held_out: sequences that are scored.
        steps: updates of the number.

    Returns:
        Nats per answer.
    """
    with torch.no_grad():
        (known, answer), (logits, held_answer) = (
            (model(batch.input_ids, use_cache=False).logits[:, -2], batch.input_ids[:, -1]) for batch in (fitted, held_out)
        )
    scale = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([scale], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(known * scale.exp(), answer).backward()
        optimizer.step()
    return nn.functional.cross_entropy(logits * scale.detach().exp(), held_answer).item()


def study_seed(seed: int, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """One row per transfer and order of its rows, "aligned" or "shuffled"; losses in nats per last answer.

    Args:
        seed: of the model and the sequences.
        sizes: what it may cost.

    Returns:
        Rows. train_base and train: on what lambda is fitted to, without it and with it; base and held_out: the same on
        sequences never seen; gain: base minus held_out; tempered: the gain of a temperature; accuracy: on held-out sequences,
        and 1 is perfect.
    """
    rng = torch.Generator().manual_seed(seed)
    model = base_model(rng)
    train_base(model, sizes, rng)
    fitted, held_out = (last_answer(sequences(n, rng)) for n in (sizes.fitted_on, sizes.held_out))
    shuffled = BLOCKS.shuffled(rng)
    tempered = tempered_loss(model, fitted, held_out, sizes.lambda_steps)
    kinds: dict[str, type[TransferAdapter]] = {"output": OutputTransferAdapter, "relative": RelativeTransferAdapter}
    for name, kind in kinds.items():
        for order, blocks in {"aligned": BLOCKS, "shuffled": shuffled}.items():
            adapter = kind(model, N_BLOCKS)
            losses = fit(adapter, [fitted._replace(blocks=blocks)], lr=0.05, steps=sizes.lambda_steps)
            after, right = measure(adapter, held_out._replace(blocks=blocks))
            largest = adapter.coefficients.abs().max().item()
            nn.init.zeros_(adapter.coefficients)
            before, right_before = measure(adapter, held_out)
            adapter.remove()
            yield {
                "base_steps": sizes.base_steps, "seed": seed, "transfer": name, "rows": order,
                "train_base": losses[0], "train": min(losses), "base": before, "held_out": after,
                "gain": before - after, "tempered": before - tempered, "base_accuracy": right_before, "accuracy": right,
                "largest_lambda": largest,
            }  # fmt: skip


def study(seeds: int, sizes: Sizes) -> pd.DataFrame:
    """The rows of `study_seed` for several seeds.

    Args:
        seeds: how many, from 0.
        sizes: what each may cost.

    Returns:
        The rows.

    Raises:
        ConfigError: no seed is asked for.
    """
    require(seeds >= 1, f"a study needs at least one seed, got {seeds}")
    return pd.DataFrame([row for seed in range(seeds) for row in study_seed(seed, sizes)])


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds in `table`, per base_steps and transfer: loss without lambda, and what a temperature and lambda take
    off it.

    over_shuffled: the gain of aligned over that of shuffled rows, seed by seed, with its least and greatest value."""
    keys = ["base_steps", "transfer"]
    per_seed = table[table["rows"] == "aligned"].set_index([*keys, "seed"])
    shuffled = table[table["rows"] == "shuffled"].set_index([*keys, "seed"])
    gains = per_seed[["base", "tempered"]].assign(shuffled=shuffled["gain"], aligned=per_seed["gain"])
    right = {"base_accuracy": per_seed["base_accuracy"], "shuffled_accuracy": shuffled["accuracy"]}
    gains = gains.assign(**right, aligned_accuracy=per_seed["accuracy"])
    over = (
        (per_seed["gain"] - shuffled["gain"])
        .groupby(keys)
        .agg(over_shuffled="mean", least="min", greatest="max", seeds="size")
    )
    return gains.groupby(keys).mean().join(over).reset_index()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="base models, each with its own data (default: %(default)s)")
    parser.add_argument(
        "--base-steps", type=int, nargs="+", default=[200, 400], help="updates of the base models, one study each (200 400)"
    )
    arguments = parser.parse_args()
    table = pd.concat([study(arguments.seeds, Sizes(base_steps=steps)) for steps in arguments.base_steps])
    print("loss of the last answer on held-out sequences, in nats\n")
    print(table.to_string(index=False, float_format="{:.4f}".format))
    print("\nmeans over seeds: loss without lambda, and what a temperature, shuffled and aligned transfer take off it\n")
    print(summary(table).to_string(index=False, float_format="{:.4f}".format))


if __name__ == "__main__":
    main()
