"""`meshwright models`: the model presets, or one model opened up part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.costs.parameters import ParameterCounts
    from meshwright.specs.model import Model


def command(
    name: str | None = typer.Argument(
        None, help="One model: a preset, a config.json, fields, or a size such as 30B."
    ),
    family: str | None = typer.Option(None, "--family", help="Only names that contain this."),
    as_json: options.AsJson = False,
) -> None:
    """List the model presets, or show one model in full.

    Parameter counts are exact: they equal what transformers builds. Active parameters are those
    that one token visits.
    """
    from meshwright.cli.output import print_json
    from meshwright.costs.parameters import count_parameters
    from meshwright.specs.errors import SpecError, nearest
    from meshwright.specs.models import load_model, model_names

    if name is not None:
        model = load_model(name)
        counts = count_parameters(model)
        if as_json:
            print_json(_as_data(model, counts))
        else:
            _print_one(model, counts)
        return
    names = [known for known in model_names() if family is None or family.lower() in known]
    if not names:
        raise SpecError("--family", family, nearest(str(family), model_names()))
    models = [load_model(known) for known in names]
    every = [(model, count_parameters(model)) for model in models]
    if as_json:
        print_json([_as_data(model, counts) for model, counts in every])
    else:
        _print_all(every)


def _as_data(model: Model, counts: ParameterCounts) -> dict[str, object]:
    return {
        **model.plain(),
        "parameters": counts.total,
        "active_parameters": counts.active,
        "parameter_parts": counts.parts(),
    }


def _print_one(model: Model, counts: ParameterCounts) -> None:
    """A model's parameters by part, and its shape."""
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_count

    attention = f"{model.heads} heads of {model.head_dim}, {model.kv_heads} kv heads"
    if model.latent_attention:
        rank = model.latent_attention.kv_rank
        attention = f"{model.heads} heads, latent attention (kv rank {rank})"
    experts = ""
    if model.experts:
        experts = (
            f"\n{model.moe_layers} layers with {model.experts.experts} experts of width "
            f"{model.experts.ffn}, {model.experts.top_k} per token"
        )
    encoder = model.encoder
    sees = ""
    if encoder is not None and encoder.layers:
        one = "an image" if encoder.kind == "images" else "a sound"
        sees = (
            f"\nencoder of {encoder.layers} layers, hidden {encoder.hidden}, FFN {encoder.ffn}: "
            f"{one} of usual size has {encoder.patches:,} patches and becomes {encoder.tokens:,.0f} tokens"
        )
    active = f", {format_count(counts.active)} active" if counts.active < counts.total else ""
    print_table(
        f"{model.name}: {format_count(counts.total)} parameters{active}",
        ("part", "parameters", "share"),
        [
            *(
                (part, f"{held:,}", f"{held / counts.total:.2%}")
                for part, held in counts.parts().items()
            ),
            ("total", f"{counts.total:,}", ""),
        ],
        right=(1, 2),
        note=f"{model.layers} layers, hidden {model.hidden}, {attention}, FFN {model.ffn}, "
        f"vocab {model.vocab}{', tied embeddings' if model.tied_embeddings else ''}{experts}{sees}\n"
        f"source: {model.source}",
    )


def _print_all(every: list[tuple[Model, ParameterCounts]]) -> None:
    """A line for each model."""
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_count

    print_table(
        "Models",
        ("name", "parameters", "active", "layers", "hidden", "heads", "kv", "vocab", "source"),
        [
            (
                model.name,
                format_count(counts.total),
                format_count(counts.active) if counts.active < counts.total else "",
                str(model.layers),
                str(model.hidden),
                str(model.heads),
                "latent" if model.latent_attention else str(model.kv_heads),
                str(model.vocab),
                model.source,
            )
            for model, counts in every
        ],
        right=range(1, 8),
        optional=(8, 7, 6),
        note="`meshwright models NAME` opens one up. Also accepted wherever a model is: a "
        "config.json, a size (30B), or fields (layers=32,hidden=4096,heads=32).",
    )
