"""The decoder's logits against transformers, on small random checkpoints, and back again."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")

from meshwright.engine.model.decoder import Decoder  # noqa: E402
from meshwright.engine.model.weights import Checkpoint, export  # noqa: E402
from meshwright.specs.errors import SpecError  # noqa: E402

LLAMA = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.2, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
CASES = {
    "gpt2": transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=48, n_layer=3, n_head=4, initializer_range=0.2
    ),
    "llama2": transformers.LlamaConfig(**LLAMA | {"num_key_value_heads": 6}),
    "llama3": transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA3_ROPE, head_dim=8),
    "llama-tied": transformers.LlamaConfig(**LLAMA | {"tie_word_embeddings": True}),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=7),
    "qwen2": transformers.Qwen2Config(**LLAMA),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=12),
    "qwen2-moe": transformers.Qwen2MoeConfig(
        **LLAMA,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        decoder_sparse_step=2,
    ),
    "qwen3-moe": transformers.Qwen3MoeConfig(
        **LLAMA,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        mlp_only_layers=[0],
        head_dim=12,
    ),
    "mixtral": transformers.MixtralConfig(
        **LLAMA, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
}


def _reference(config):
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():  # biases and norms too, so that a dropped one shows
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _load(path):
    checkpoint = Checkpoint(path)
    decoder = Decoder(checkpoint.model, checkpoint.numerics)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(checkpoint.value(name, tuple(parameter.shape)))
    return checkpoint, decoder


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_and_exports_load_there(case, tmp_path):
    reference = _reference(CASES[case])
    reference.save_pretrained(tmp_path / "theirs")
    checkpoint, decoder = _load(tmp_path / "theirs")
    tokens = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, got = reference(tokens).logits, decoder(tokens)
    assert wanted.std() > 0.1  # a degenerate model would make the comparison empty
    assert (wanted - got).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))

    export(
        tmp_path / "ours", iter(decoder.named_parameters()), checkpoint.model,
        checkpoint.numerics, 128,
    )  # fmt: skip
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    with torch.no_grad():
        assert (again(tokens).logits - wanted).abs().max() < 1e-6 * max(
            1.0, float(wanted.abs().max())
        )


def test_a_broken_checkpoint_is_one_sentence(tmp_path):
    with pytest.raises(SpecError, match=r"config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(SpecError, match="model_type"):
        Checkpoint(tmp_path)
    CASES["llama2"].save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=r"no \*\.safetensors"):
        Checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(SpecError, match="not a safetensors file"):
        Checkpoint(tmp_path)
