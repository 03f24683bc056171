"""Causal language models of the Llama layout: loading one, finding its attentions, and saying where the blocks lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require

LAYOUTS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")
"""`model_type` of the language models that are tested: decoder layers with self_attn.v_proj and self_attn.o_proj."""

IGNORED = -100
"""The label of a token that no loss counts, as in transformers."""

Ranges = Sequence[tuple[int, int]]


def load_language_model(
    path_or_name: str | Path, *, attention: str | None = None, dtype: torch.dtype | None = None, download: bool = False
) -> Any:
    """A pretrained causal language model of a supported layout, in evaluation mode, by transformers.

    Only safetensors are read, and no code that comes with a model is run.

    Args:
        path_or_name: a folder, or a name on the Hugging Face hub that is in the local cache.
        attention: transformers' attn_implementation ("eager" for relative transfer; None: its default).
        dtype: of the weights (None: as saved).
        download: whether a name that is not in the cache may be fetched.

    Returns:
        The model of transformers.

    Raises:
        ConfigError: it cannot be loaded, or has another layout.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    source = _source(path_or_name)
    load: Any = AutoModelForCausalLM.from_pretrained  # typed as if it never returned a report
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=not download, trust_remote_code=False)
        _check_layout(str(source), config.model_type)
        model, report = load(
            source,
            config=config,
            dtype=dtype or "auto",
            attn_implementation=attention,
            local_files_only=not download,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except ConfigError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        hint = "" if download else "; a name that is not in the local cache needs download=True"
        raise ConfigError(f"could not load a language model from {source!r}: {reason}{hint}") from None
    # transformers draws weights that a file lacks at random, with a warning
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    require(not missing, f"{source!r} does not hold all weights of the model it describes: {missing[:3]}; get it again")
    return model.eval()


def _source(path_or_name: str | Path) -> str:
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        return str(path)
    looks_like_a_path = isinstance(path_or_name, Path) or path.is_absolute() or str(path_or_name)[:1] in (".", "~")
    require(not looks_like_a_path, f"there is no folder {str(path)!r}; give the folder that holds the model's config.json")
    return str(path_or_name)


def _check_layout(name: str, model_type: str) -> None:
    supported = ", ".join(LAYOUTS)
    require(
        model_type in LAYOUTS,
        f"{name} has the attention layout {model_type!r}, which coefficient transfer does not know; supported: {supported}",
    )


def attentions(model: Any) -> list[Any]:
    """The self-attention of every layer of `model`, first to last; a `ConfigError` if the layout is none of `LAYOUTS`."""
    config = getattr(model, "config", None)
    _check_layout(type(model).__name__, getattr(config, "model_type", "unknown"))
    try:
        found = [layer.self_attn for layer in model.model.layers]
    except AttributeError:
        raise ConfigError(
            f"{type(model).__name__} has no model.layers[i].self_attn; give the causal language model itself, such as "
            "LlamaForCausalLM, not its decoder and not a wrapper around it"
        ) from None
    return found


@dataclass(frozen=True, eq=False)
class Blocks:
    """The positions of a sequence's blocks: L - 1 context blocks, then the target block, of equal length.

    Row r of a context block is transferred to row r of the target. The target, and only it, may reach beyond the tokens given:
    it is what is being written.

    Args:
        rows: (1 or batch, L, length), the position in the input (padding counts) of every row of every block.
    """

    rows: Tensor

    @classmethod
    def of(cls, ranges: Ranges | Sequence[Ranges]) -> Blocks:
        """Blocks from their `ranges`: (start, stop) per block, stop excluded, or such a list per item of the batch, all of the
        same length.

        Blocks follow each other without overlap, gaps allowed, and the last one is the target."""
        wanted = "(start, stop) of whole numbers for each block, or such a list for each item of the batch"
        try:
            table = torch.tensor(ranges)
        except (TypeError, ValueError):
            raise ConfigError(f"blocks must be given as {wanted}; got {ranges!r}") from None
        table = table[None] if table.ndim == 2 else table
        well_formed = table.ndim == 3 and table.shape[2] == 2 and table.dtype == torch.int64
        require(well_formed, f"blocks must be given as {wanted}; got {ranges!r}")
        start, stop = table.unbind(-1)
        require(table.shape[1] >= 2, f"transfer needs a context block and the target block at least, got {ranges!r}")
        lengths = sorted(set((stop - start).flatten().tolist()))
        require(
            len(lengths) == 1 and lengths[0] > 0,
            f"rows are matched by their place in the block, so blocks must be equally long, but they have {lengths} tokens",
        )
        ordered = bool((start[:, :1] >= 0).all() and (start[:, 1:] >= stop[:, :-1]).all())
        require(ordered, f"blocks must follow each other without overlap, the target last; got {ranges!r}")
        return cls(start[:, :, None] + torch.arange(lengths[0]))

    @property
    def n_blocks(self) -> int:
        """L, the target included."""
        return self.rows.shape[1]

    @property
    def length(self) -> int:
        """Tokens per block."""
        return self.rows.shape[2]

    @property
    def context(self) -> Tensor:
        """(1 or batch, L - 1, length) positions of the context blocks' rows."""
        return self.rows[:, :-1]

    @cached_property
    def context_stop(self) -> int:
        """One more than the last position of any context block."""
        return int(self.context.max()) + 1

    @property
    def target(self) -> Tensor:
        """(1 or batch, length) positions of the target block's rows, ascending."""
        return self.rows[:, -1]

    def same_as(self, other: Blocks) -> bool:
        """Whether all rows have the same positions as those of `other`."""
        return self is other or torch.equal(self.rows, other.rows)

    def to(self, device: torch.device) -> Blocks:
        """The same on `device`."""
        return self if self.rows.device == device else Blocks(self.rows.to(device))

    def shuffled(self, rng: torch.Generator) -> Blocks:
        """A control that destroys alignment: in each context block, a random cycle, drawn by `rng`, decides which row meets
        which target row, so that every row meets another one than its own."""
        require(self.length > 1, "blocks of one row cannot be shuffled")
        shuffled = [self._cycled(block, rng) for block in self.context.unbind(1)]
        return Blocks(torch.stack([*shuffled, self.target], 1))

    def _cycled(self, block: Tensor, rng: torch.Generator) -> Tensor:
        order = torch.randperm(self.length, generator=rng)
        successor = torch.empty_like(order).index_copy_(0, order, order.roll(1))
        return block[:, successor.to(block.device)]


class Batch(NamedTuple):
    """Token sequences with their blocks, to fit lambda on.

    Args:
        input_ids: (batch, seq).
        blocks: as `Blocks.of` takes them, or a `Blocks`.
        attention_mask: (batch, seq), 0 at padding (None: no padding).
        labels: (batch, seq), a token to count the loss at, -100 elsewhere, aligned with input_ids as in transformers. None:
            the loss counts what the target block predicts, every token whose predecessor lies in the target block.
    """

    input_ids: Tensor
    blocks: Blocks | Ranges | Sequence[Ranges]
    attention_mask: Tensor | None = None
    labels: Tensor | None = None

    def scored(self) -> Tensor:
        """(batch, seq) the labels, or the default for them; `ConfigError` if none counts."""
        labels = self.labels
        if labels is None:
            blocks = self.blocks if isinstance(self.blocks, Blocks) else Blocks.of(self.blocks)
            position = torch.arange(self.input_ids.shape[1])
            target = blocks.target.cpu()
            counts = (position > target[:, :1]) & (position <= target[:, -1:] + 1)
            if self.attention_mask is not None:
                counts = counts & (self.attention_mask.cpu() != 0)
            labels = torch.where(counts.to(self.input_ids.device), self.input_ids, IGNORED)
        require(
            bool((labels[:, 1:] != IGNORED).any()),
            f"no token of this batch is scored: {self.input_ids.shape[1]} tokens per sequence, none of them predicted in the "
            "target block, or all labels -100",
        )
        return labels
