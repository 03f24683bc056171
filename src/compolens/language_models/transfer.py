"""Coefficient transfer on a frozen causal language model (2511.20194): L - 1 learned scalars per layer, and nothing else.

A sequence holds L blocks of equal length, L - 1 context blocks and the target block. With alpha_i the attention weights and
Z_i the attention outputs (before the output projection, per head) of block i's rows, and lambda_i the scalars of a layer,
shared by heads and rows:

    output     Z_L + sum_i lambda_i Z_i                                    as printed: outputs are added row by row
    relative   alpha_L[:, block L] += lambda_i alpha_i[:, block i]         what a row did in its own block, done in the target

The printed formula, alpha_L <- alpha_L + sum_i lambda_i alpha_i, moves rows and leaves columns where they are; with one and
the same values that equals the first line. The second moves columns, too: our reading of how a rule, not content, would
move. lambda starts at 0, where the model's function is unchanged to the last bit and d loss / d lambda_i is <d loss / d Z_L,
Z_i>. Both keep a model causal: context rows precede the target, and in-block weights reach no later row.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compolens.foundation import files
from compolens.foundation.configs import ConfigError, require
from compolens.language_models.wrapped import IGNORED, Batch, Blocks, Ranges, attentions

WEIGHTS, DESCRIPTION = "transfer.safetensors", "transfer.json"


class _ExactAdd(torch.autograd.Function):
    """base + delta, with base's own bits wherever delta is 0 (-0.0 + 0.0 would be 0.0), and the gradient of a sum."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, delta: Tensor) -> Tensor:
        return torch.where(delta == 0, base, base + delta)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0]


@dataclass(frozen=True)
class _Call:
    """One call of one layer's attention: its input (batch, query, d_model), and how many positions came before it."""

    layer: int
    blocks: Blocks
    hidden: Tensor
    cache: Any
    past: int

    @property
    def batch(self) -> Tensor:
        return torch.arange(self.hidden.shape[0], device=self.hidden.device)

    @property
    def seen(self) -> int:
        """Positions up to and with this call."""
        return self.past + self.hidden.shape[1]

    def at_target(self, rows: Tensor) -> Tensor:
        """Target rows (batch, row, width) -> (batch, query, width): where this call's queries are target rows, else 0."""
        position = torch.arange(self.past, self.seen, device=rows.device)
        row = position - self.blocks.target[:, :1]
        inside = (row >= 0) & (row < self.blocks.length)
        placed = rows[self.batch[:, None], row.clamp(0, self.blocks.length - 1)]
        return torch.where(inside[..., None], placed, torch.zeros((), dtype=rows.dtype, device=rows.device))


class TransferAdapter(nn.Module, ABC):
    """Coefficient transfer put onto a causal language model, which is frozen and otherwise left as it is.

    Its coefficients (layer, L - 1), lambda, are 0 at first and the only parameters. Unless blocks are set, the model is the
    base model. (The frozen one: for torch, whether a matrix wants a gradient can change the last bit of a product with a
    slice.) The adapter is no part of the model: its state_dict stays the base model's. Generation with a cache works, the
    prompt and all steps under the same blocks; so does a batch whose items have blocks at different positions (left padding).

    Args:
        model: a causal language model of transformers (`LAYOUTS`).
        n_blocks: L, at least 2, the target included.
    """

    model: Any

    def __init__(self, model: Any, n_blocks: int) -> None:
        """model: a causal language model of transformers (`LAYOUTS`); n_blocks: L, at least 2, the target included."""
        super().__init__()
        layers = attentions(model)
        is_count = isinstance(n_blocks, int) and not isinstance(n_blocks, bool)
        require(is_count and n_blocks >= 2, f"n_blocks counts the target, so it must be at least 2, got {n_blocks!r}")
        self.coefficients = nn.Parameter(torch.zeros(len(layers), n_blocks - 1, device=layers[0].o_proj.weight.device))
        object.__setattr__(self, "model", model)  # not as a submodule: the model holds no part of us, nor we of it
        self._trainable = [p for p in model.parameters() if p.requires_grad]
        model.requires_grad_(False)
        self._blocks: Blocks | None = None
        self._calls: list[_Call | None] = [None] * len(layers)
        # cache of a generation -> layer -> (blocks, what the context rows held); forgotten with the cache
        self._kept: weakref.WeakKeyDictionary[Any, dict[int, tuple[Blocks, Tensor]]] = weakref.WeakKeyDictionary()
        self._handles = [handle for layer, attention in enumerate(layers) for handle in self._attach(layer, attention)]

    @property
    def n_layers(self) -> int:
        return self.coefficients.shape[0]

    @property
    def n_blocks(self) -> int:
        """L, the target included."""
        return self.coefficients.shape[1] + 1

    @property
    def count(self) -> int:
        """Learned numbers: layers x context blocks."""
        return self.coefficients.numel()

    def extra_repr(self) -> str:
        return f"{self.count} parameters ({self.n_layers} layers x {self.n_blocks - 1})"

    def set_blocks(self, blocks: Blocks | Ranges | Sequence[Ranges] | None) -> None:
        """From now on transfer between `blocks` (see `Blocks.of`); None: be the base model."""
        if blocks is not None and not isinstance(blocks, Blocks):
            blocks = Blocks.of(blocks)
        if blocks is not None:
            expected = f"{self.n_blocks}: {self.n_blocks - 1} of context, then the target"
            require(blocks.n_blocks == self.n_blocks, f"got {blocks.n_blocks} blocks, this adapter has {expected}")
            blocks = blocks.to(self.model.device)
        self._blocks = blocks

    @contextmanager
    def blocks(self, blocks: Blocks | Ranges | Sequence[Ranges] | None) -> Iterator[TransferAdapter]:
        """A context with transfer between `blocks`, as in `with adapter.blocks([(0, 8), (8, 16), (16, 24)]):
        model(input_ids)`."""
        before = self._blocks
        self.set_blocks(blocks)
        try:
            yield self
        finally:
            self._blocks = before

    def remove(self) -> None:
        """Take the adapter off: the model is what it was, and its parameters train again where they did."""
        for handle in self._handles:
            handle.remove()
        for parameter in self._trainable:
            parameter.requires_grad_(True)

    def save(self, folder: str | Path) -> None:
        """Write lambda alone into `folder`: transfer.safetensors, and transfer.json saying what it belongs to."""
        files.write_tensors(Path(folder) / WEIGHTS, {"coefficients": self.coefficients})
        files.write_json(Path(folder) / DESCRIPTION, self._describe())

    def load(self, folder: str | Path) -> None:
        """Read lambda from `folder`; a `ConfigError` if it is of another transfer, number of layers or blocks, or kind of
        model."""
        path = Path(folder) / DESCRIPTION
        for name in (DESCRIPTION, WEIGHTS):
            require((Path(folder) / name).is_file(), f"{folder} holds no {name}; adapter.save(folder) writes it")
        found, ours = files.read_json(path), self._describe()
        for key, value in ours.items():
            got = found.get(key) if isinstance(found, dict) else None
            require(got == value, f"{path} does not fit: {key} is {got!r} there and {value!r} here")
        tensors, _ = files.read_tensors(Path(folder) / WEIGHTS)
        values = tensors.get("coefficients")
        if values is None or values.shape != self.coefficients.shape or not values.isfinite().all():
            shape = tuple(self.coefficients.shape)
            raise ConfigError(f"{Path(folder) / WEIGHTS} holds no finite coefficients of shape {shape}; save them again")
        with torch.no_grad():
            self.coefficients.copy_(values)

    def _describe(self) -> dict[str, Any]:
        base = {"model_type": self.model.config.model_type, "d_model": self.model.config.hidden_size}
        return {"format": 1, "transfer": type(self).__name__, "n_layers": self.n_layers, "n_blocks": self.n_blocks, **base}

    @abstractmethod
    def _attach(self, layer: int, attention: Any) -> list[Any]:
        """Hook one layer; the handles."""

    def _note(self, layer: int, attention: Any) -> Any:
        """Before a layer's attention runs, note what it is called with."""

        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            self._calls[layer] = None
            if self._blocks is None:
                return
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            cache = kwargs.get("past_key_values")
            past = 0 if cache is None else int(cache.get_seq_length(layer))
            items = self._blocks.rows.shape[0]
            require(
                items in (1, hidden.shape[0]),
                f"blocks were given for {items} items, but the batch has {hidden.shape[0]}; give one list for all, or one "
                "each (beam search and num_return_sequences repeat every item)",
            )
            self._calls[layer] = _Call(layer, self._blocks.to(hidden.device), hidden, cache, past)

        return attention.register_forward_pre_hook(note, with_kwargs=True)

    def _take(self, layer: int) -> _Call | None:
        """The call that was noted, once: what it refers to (a cache, the input) shall not outlive it here."""
        call, self._calls[layer] = self._calls[layer], None
        return call

    def _context(self, call: _Call, read: Callable[[Tensor], Tensor]) -> Tensor:
        """What the context rows hold: read at their positions (1 or batch, context, row) now, or kept from the first call.

        They have to be in the first call entirely: a beam search swaps the items of a cache, and what was kept of a prompt is
        the same for all its beams, but what they have written since is not.
        """
        if call.past == 0:
            require(
                call.blocks.context_stop <= call.seen,
                f"the context blocks reach up to position {call.blocks.context_stop}, but the input has {call.seen} tokens; "
                "give all of them with the first call (the prompt, not in chunks)",
            )
            rows = read(call.blocks.context)
            if call.cache is not None:
                self._kept.setdefault(call.cache, {})[call.layer] = (call.blocks, rows)
            return rows
        kept = self._kept.get(call.cache, {}).get(call.layer)
        if kept is None or not kept[0].same_as(call.blocks) or len(kept[1]) != len(call.hidden):
            raise ConfigError(
                "this cache was not filled under these blocks; start from an empty cache within `with adapter.blocks(...)`"
            )
        return kept[1]

    def _mixed(self, call: _Call, context: Tensor) -> Tensor:
        """sum_i lambda_i context_i: (batch, context, ...) -> (batch, ...), at least in lambda's precision."""
        scalars = self.coefficients[call.layer].to(context.device)
        dtype = torch.promote_types(context.dtype, scalars.dtype)
        return torch.einsum("i,bi...->b...", scalars.to(dtype), context.to(dtype))


class OutputTransferAdapter(TransferAdapter):
    """The printed formula: the attention outputs of the context blocks are added to the target's, Z_L + sum_i lambda_i Z_i.

    Works with every attention implementation, since it reads what goes into the output projection.
    """

    def _attach(self, layer: int, attention: Any) -> list[Any]:
        def add(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            call = self._take(layer)
            return None if call is None else (self._transferred(call, args[0]), *args[1:])

        return [self._note(layer, attention), attention.o_proj.register_forward_pre_hook(add)]

    def _transferred(self, call: _Call, z: Tensor) -> Tensor:
        """z (batch, query, head * d_head): attention outputs of all heads, before the output projection."""
        context = self._context(call, lambda positions: z[call.batch[:, None, None], positions])
        return _ExactAdd.apply(z, call.at_target(self._mixed(call, context)).to(z.dtype))


class RelativeTransferAdapter(TransferAdapter):
    """Columns move with the blocks: alpha_L[:, block L] += lambda_i alpha_i[:, block i], our reading (see the module).

    The weights are the full row's, so they sum to at most 1 within a block. Needs attention that returns its weights:
    load the model with attn_implementation="eager", or call model.set_attn_implementation("eager").
    """

    def _attach(self, layer: int, attention: Any) -> list[Any]:
        def add(module: nn.Module, args: tuple, output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None] | None:
            call = self._take(layer)
            return None if call is None else (self._transferred(call, attention, *output), output[1])

        return [self._note(layer, attention), attention.register_forward_hook(add)]

    def _transferred(self, call: _Call, attention: Any, output: Tensor, weights: Tensor | None) -> Tensor:
        """output (batch, query, d_model) after the output projection; weights (batch, head, query, key)."""
        if weights is None:
            raise ConfigError(
                f"relative transfer reads attention weights, and {self.model.config._attn_implementation!r} attention returns "
                'none; call model.set_attn_implementation("eager")'
            )
        values = self._target_values(call, attention)
        context = self._context(call, lambda positions: self._in_block(call, weights, positions))
        groups = weights.shape[1] // values.shape[1]
        moved = self._mixed(call, context).to(values.dtype) @ values.repeat_interleave(groups, 1)
        delta = call.at_target(moved.transpose(1, 2).flatten(2)).to(output.dtype)
        projected = attention.o_proj.forward(delta)  # not through its hooks: this is no second pass
        bias = attention.o_proj.bias
        return _ExactAdd.apply(output, projected if bias is None else projected - bias)

    def _in_block(self, call: _Call, weights: Tensor, positions: Tensor) -> Tensor:
        """(batch, context, head, row, column) weights of the context rows on their own block's columns, none on later ones."""
        columns = positions.sort(-1).values
        own = weights[call.batch[:, None, None, None], :, positions[..., :, None], columns[..., None, :]].movedim(-1, 2)
        # rows of padding attend evenly to everything, the future included; and a shuffled row may come from further down
        return own.tril()

    def _target_values(self, call: _Call, attention: Any) -> Tensor:
        """(batch, key-value head, row, d_head) of the target block; rows not yet written hold anything finite."""
        batch, rows = call.batch[:, None], call.blocks.target.clamp(max=call.seen - 1)
        if call.cache is None:
            return attention.v_proj(call.hidden[batch, rows]).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        values = call.cache.layers[call.layer].values
        require(
            values.shape[2] >= call.seen,
            f"relative transfer needs the values of all {call.seen} positions, but layer {call.layer}'s cache keeps "
            f"{values.shape[2]} (a sliding window, or a quantized cache); pass use_cache=False",
        )
        return values[batch, :, rows].transpose(1, 2)


def target_loss(adapter: TransferAdapter, batch: Batch) -> Tensor:
    """Mean cross-entropy at the tokens a batch scores, with the adapter's transfer.

    Args:
        adapter: on a model.
        batch: the sequences.

    Returns:
        Nats per token, 0 is perfect.
    """
    return _token_losses(adapter, batch).mean()


def _token_losses(adapter: TransferAdapter, batch: Batch) -> Tensor:
    device = adapter.model.device
    labels = batch.scored().to(device)[:, 1:]
    mask = None if batch.attention_mask is None else batch.attention_mask.to(device)
    with adapter.blocks(batch.blocks):
        logits = adapter.model(batch.input_ids.to(device), attention_mask=mask, use_cache=False).logits[:, :-1]
    scored = labels != IGNORED
    exact = torch.promote_types(logits.dtype, torch.float32)
    return nn.functional.cross_entropy(logits[scored].to(exact), labels[scored], reduction="none")


def fit(adapter: TransferAdapter, batches: Sequence[Batch], lr: float = 0.01, steps: int = 100) -> list[float]:
    """Adam on lambda alone; keeps the best lambda met, so that the loss on these batches never ends above where it began.

    Every step goes through all batches (there are too few parameters to need noise); the model stays in evaluation mode.

    Args:
        adapter: whose lambda is fitted.
        batches: what it is fitted to, at least one.
        lr: learning rate, above 0.
        steps: updates, at least 0.

    Returns:
        The losses (nats per scored token) before each step and after the last one: steps + 1 numbers.

    Raises:
        ConfigError: there is no batch, lr or steps are out of range, or the loss is not finite.
    """
    batches = list(batches)
    require(bool(batches), "fit needs at least one batch, got none")
    require(lr > 0 and steps >= 0, f"lr must be positive and steps not negative, got lr={lr}, steps={steps}")
    total = sum(int((batch.scored()[:, 1:] != IGNORED).sum()) for batch in batches)
    optimizer = torch.optim.Adam([adapter.coefficients], lr=lr)
    training, best, lowest, losses = adapter.model.training, adapter.coefficients.detach().clone(), math.inf, []
    adapter.model.eval()
    try:
        for step in range(steps + 1):
            optimizer.zero_grad()
            losses.append(sum(_backward(adapter, batch, total) for batch in batches))
            require(math.isfinite(losses[0]), f"the loss without transfer is {losses[0]}; check the model and its input")
            if losses[-1] < lowest:
                lowest, best = losses[-1], adapter.coefficients.detach().clone()
            if step < steps:
                optimizer.step()
    finally:
        adapter.model.train(training)
        with torch.no_grad():
            adapter.coefficients.copy_(best)
    return losses


def _backward(adapter: TransferAdapter, batch: Batch, total: int) -> float:
    """Add a batch's part of the mean loss over `total` tokens to the gradient; that part."""
    part = _token_losses(adapter, batch).sum() / total
    part.backward()
    return part.item()
