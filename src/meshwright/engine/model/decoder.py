"""One decoder for every family of `traits.FAMILIES`, from GPT-2 to mixtures of experts.

The same forward runs on one device and on a pipeline stage of a 4D layout: `enter` and `leave`
are the identity when an axis has one rank. Layers sit in a ModuleDict under their global number,
so a stage that holds layers 4 to 7 still calls them `layers.4.…`, and a stage without embedding or
head simply skips it.

Shapes: B sequences, S tokens on this rank (whole sequence / cp), H hidden, and S/tp where sequence
parallelism splits the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from meshwright.engine.model.attention import lengthened, local_positions, rotary_table
from meshwright.engine.model.collectives import enter, leave, lose_gradient, own_range
from meshwright.engine.model.dropout import EMBEDDING, Draw, Dropout, draw
from meshwright.engine.model.experts import Mixture
from meshwright.engine.model.further import FurtherLayer, with_loss
from meshwright.engine.model.heads import Attention, LatentAttention
from meshwright.engine.model.kernels import softcapped
from meshwright.engine.model.layers import Axes, Linear, Mlp, Norm, Pass, local
from meshwright.engine.model.loss import summed_cross_entropy
from meshwright.engine.model.masks import Masks, attention_masks
from meshwright.engine.model.numerics import Numerics, default_numerics
from meshwright.engine.model.sparse import has_sparse
from meshwright.engine.model.tied import TiedWeight
from meshwright.engine.model.traits import traits_of
from meshwright.specs.layout import Recompute
from meshwright.specs.model import Model


class Block(nn.Module):
    """One transformer layer: attention and FFN, each behind its norm, before it, or between two."""

    def __init__(
        self, model: Model, index: int, numerics: Numerics, axes: Axes, recompute: Recompute
    ) -> None:
        super().__init__()
        self.full_recompute = recompute == "full"
        traits = traits_of(model.family)
        window = model.window if model.has_window(index) else 0
        window = -window if traits.chunks else window
        kind = LatentAttention if model.latent_attention else Attention
        self.attention = kind(model, numerics, axes, window, recompute == "selective")
        norm = (model.norm, model.hidden, model.norm_bias, numerics.norm_eps, traits.norm_offset)
        self.norms = traits.norms
        self.attention_norm, self.ffn_norm = Norm(*norm), Norm(*norm)
        if traits.norms == "both":
            self.attention_post_norm, self.ffn_post_norm = Norm(*norm), Norm(*norm)
        if model.is_moe_layer(index):
            self.moe = Mixture(model, numerics, axes)
        else:
            self.mlp = Mlp(model, model.ffn, numerics.activation, axes)

    def forward(self, x: torch.Tensor, here: Pass) -> Any:
        """`[B, S or S/tp, H]` to the same."""
        if self.full_recompute and torch.is_grad_enabled():
            return checkpoint(self._layer, x, here, use_reentrant=False, preserve_rng_state=False)
        return self._layer(x, here)

    def _layer(self, x: torch.Tensor, here: Pass) -> torch.Tensor:
        ffn = self.moe if hasattr(self, "moe") else self.mlp
        if self.norms == "after":
            attended = self.attention_norm(self.attention(x, here))
            x = x + here.drop(attended, "attention")
            return x + here.drop(self.ffn_norm(ffn(x)), "ffn")
        attended = self.attention(self.attention_norm(x), here)
        if self.norms == "both":
            attended = self.attention_post_norm(attended)
        x = x + here.drop(attended, "attention")
        out = ffn(self.ffn_norm(x))
        if self.norms == "both":
            out = self.ffn_post_norm(out)
        return x + here.drop(out, "ffn")


def own_slice(at: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The part of `[…, S]` that this rank's slice of the residual stream stands for."""
    return at.chunk(axes.tp.size, -1)[axes.tp.rank] if axes.sequence_parallel else at


class Embedding(nn.Module):
    """Token (and learned position) embedding, its vocabulary rows split over tp."""

    def __init__(self, model: Model, axes: Axes) -> None:
        super().__init__()
        self.axes, self.vocab = axes, model.vocab
        self.scale = model.hidden**0.5 if traits_of(model.family).scaled_embedding else 1.0
        self.weight = nn.Parameter(torch.empty(model.vocab, model.hidden))
        if model.positions == "learned":
            self.positions = nn.Parameter(torch.empty(model.max_positions, model.hidden))

    def forward(
        self,
        tokens: torch.Tensor,
        starts: torch.Tensor | None = None,
        tied: TiedWeight | None = None,
    ) -> torch.Tensor:
        """`[B, S]` integers to `[B, S or S/tp, H]`; learned positions count from `starts`."""
        tp, table = self.axes.tp, local(self.weight)

        def look_up(rows: torch.Tensor) -> torch.Tensor:
            return F.embedding(rows, table) if tied is None else tied.look_up(rows)

        if tp.size == 1:
            x = look_up(tokens)
        else:
            # Tokens of other ranks' rows contribute zero; the sum over tp brings them in.
            rows = tokens - own_range(self.vocab, tp).start
            mine = (rows >= 0) & (rows < table.shape[0])
            x = look_up(rows.where(mine, 0)) * mine[..., None]
            x = leave(x, tp, self.axes.sequence_parallel)
        if self.scale != 1.0:
            # In the table's own precision, as checkpoints of these families were trained.
            x = x * torch.full((), self.scale, dtype=x.dtype, device=x.device)
        if hasattr(self, "positions"):
            at = local_positions(tokens.shape[1], self.axes.cp).to(tokens.device)
            at = at if starts is None else at - starts
            x = x + local(self.positions)[own_slice(at, self.axes)]
        return x


class Decoder(nn.Module):
    """The layers `layers` of a model, with or without its embedding and head: one stage of it."""

    def __init__(
        self,
        model: Model,
        numerics: Numerics | None = None,
        *,
        layers: Iterable[int] | None = None,
        embedding: bool = True,
        head: bool = True,
        axes: Axes | None = None,
        recompute: Recompute = "none",
        recompute_layers: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.numerics = model, numerics or default_numerics(model)
        self.axes = axes or Axes()
        self.lose_input_gradient = False  # set by verify's pipeline mutant only
        self.dropout: Dropout | None = None
        if embedding:
            self.embed = Embedding(model, self.axes)
        numbers = list(range(model.layers) if layers is None else layers)
        last = len(numbers) if recompute_layers is None else recompute_layers
        self.layers = nn.ModuleDict(
            {
                str(i): Block(
                    model, i, self.numerics, self.axes, "none" if at >= last else recompute
                )
                for at, i in enumerate(numbers)
            }
        )
        if head:
            if model.final_norm:
                self.norm = Norm(
                    model.norm, model.hidden, model.norm_bias, self.numerics.norm_eps,
                    traits_of(model.family).norm_offset,
                )  # fmt: skip
            if not (model.tied_embeddings and embedding):
                self.head = Linear(model.hidden, model.vocab)
        self.has_head = head
        self.depths: list[str] = []
        """Names in `layers` of those that predict further tokens, on the last stage."""
        self.valid_tokens: int | torch.Tensor = 1
        """Of the global batch, which the losses of these are divided by."""
        if head and model.predict_layers:
            again = "none" if last < len(numbers) else recompute
            self._predict_further(again, embedding)
        self.tied = head and embedding and model.tied_embeddings

    def _predict_further(self, recompute: Recompute, embedding: bool) -> None:
        """Add the layers of every depth, and a copy of the embedding where another stage has it."""
        for index in range(self.model.layers, self.model.layers + self.model.predict_layers):
            block = Block(self.model, index, self.numerics, self.axes, recompute)
            self.layers[str(index)] = FurtherLayer(block, self.model, self.numerics)
            self.depths.append(str(index))
        if not embedding:
            self.ahead = Embedding(self.model, self.axes)

    def forward(
        self,
        x: torch.Tensor,
        starts: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
        further: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Tokens `[B, S]` or hidden states `[B, S or S/tp, H]` to hidden states or logits.

        Logits are `[B, S, V/tp]`: this rank's slice of the vocabulary, the last rank's perhaps shorter.

        Args:
            x: what the stage before sends.
            starts: `[B, S]`, where in the whole sequence each token's document starts. Attention
                stays inside documents, and positions count from their starts.
            rows: `[B]`, which sequences of the global batch these are; dropout needs them.
            further: as `further.ahead` makes it, of this rank's tokens; without it, or without gradients, no
                further token is predicted.
        """
        if not (self.depths and torch.is_grad_enabled()):
            further = None
        tied = TiedWeight(local(self.embed.weight)) if self.tied else None
        tokens_ahead: torch.Tensor | None = None
        if hasattr(self, "embed"):
            if further is not None:  # one look-up for all, as FSDP gathers the table once
                x = torch.cat([x, *further[:, : len(self.depths)].unbind(1)])
            x = self.embed(x, starts, tied)
            if further is not None:
                x, tokens_ahead = x.split([len(further), len(x) - len(further)])
        elif self.lose_input_gradient:
            x = lose_gradient(x)
        here = self._pass(x, starts, rows)
        if hasattr(self, "embed"):
            x = here.of(EMBEDDING).drop(x, "embedding")
        for number, layer in self.layers.items():
            if not isinstance(layer, FurtherLayer):
                x = layer(x, here.of(int(number)))
        if not self.has_head:
            return x
        x = self.norm(x) if hasattr(self, "norm") else x
        logits = self._logits(x, tied)
        if further is None:
            return logits
        loss = self._further_loss(x, tokens_ahead, further, here)
        return with_loss(logits, loss)

    def _further_loss(
        self, x: torch.Tensor, embedded: torch.Tensor | None, further: torch.Tensor, here: Pass
    ) -> torch.Tensor:
        """The weighted mean of the losses of all depths (equations 24 and 25), this rank's part."""
        depths, axes = len(self.depths), self.axes
        if embedded is None:
            embedded = self.ahead(further[:, :depths].transpose(0, 1).flatten(0, 1))
        first = own_range(self.model.vocab, axes.tp).start
        total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        taken, wanted = embedded.chunk(depths), further[:, depths:].unbind(1)
        for name, each, targets in zip(self.depths, taken, wanted, strict=True):
            x, out = self.layers[name](x, each, here.of(int(name)))
            logits = self._logits(out, None)
            total = total + summed_cross_entropy(logits, targets, axes.tp, first)
        return total / self.valid_tokens * (self.numerics.predict_weight / depths)

    def _pass(
        self, x: torch.Tensor, starts: torch.Tensor | None, rows: torch.Tensor | None
    ) -> Pass:
        axes = self.axes
        length = x.shape[1] * (axes.tp.size if axes.sequence_parallel else 1)
        at = local_positions(length, axes.cp).to(x.device)
        rotary = windowed = sharpness = None
        draws: dict[int, Draw] = {}
        masks: dict[int, Masks] = {}
        if not (axes.ring and axes.cp.size > 1):
            windows = [cast(Any, layer).attention.window for layer in self.layers.values()]
            tiles = has_sparse(x, self.model.head_dim)
            masks = attention_masks(windows, at, axes.cp, starts, x.dtype, tiles)
        if self.model.positions == "rope":
            # One table per sequence where documents begin at different places, `[B, 1, S, d]`.
            counted = at if starts is None else (at - starts)[:, None]
            latent = self.model.latent_attention
            width = latent.rope_head_dim if latent else self.model.head_dim
            rotary = rotary_table(counted, width, self.numerics, x)
            if self.numerics.window_rope_theta:
                windowed = rotary_table(counted, width, self.numerics.windowed(), x)
            if self.numerics.temperature_scale:
                sharpness = lengthened(counted, self.numerics, x)
        if self.dropout is not None and self.dropout.rate > 0:
            if rows is None:
                raise ValueError("dropout needs the numbers of the sequences")
            tokens = rows[:, None] * (length * axes.cp.size) + own_slice(at, axes)
            draws = draw(self.dropout, tokens, (int(number) for number in self.layers))
        return Pass(
            rotary=rotary, window_rotary=windowed, sharpness=sharpness, starts=starts,
            masks=masks, draws=draws,
        )  # fmt: skip

    def _logits(self, x: torch.Tensor, tied: TiedWeight | None) -> torch.Tensor:
        x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        logits: torch.Tensor = self.head(x) if tied is None else tied.logits(x)
        cap = self.numerics.logits_softcap
        return softcapped(logits, cap) if cap else logits


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Every parameter of the whole decoder and its shape."""
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Decoder(model).named_parameters()}
