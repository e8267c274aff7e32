"""Tokens per second of the torch engine on a tiny model, next to transformers' ``generate`` in the same run.

    python benchmarks/engine.py [--json FILE] [--slots 8 16 64] [--new-tokens 64] [--repeats 3]

Both sample at temperature 1 and return log-probs, on one CPU thread. The engine is also measured with short
responses that come and go (a prefill for every group), where generate has no counterpart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swingshift.core.types import GenerationRequest, SamplingParams
from swingshift.engines.torch_engine import TorchEngine

PROMPT = tuple(range(1, 10))
GROUP = 8


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def engine_rate(model: LlamaForCausalLM, slots: int, new_tokens: int, num_groups: int) -> float:
    """Tokens per second of ``num_groups`` groups of 8 responses sent at once."""
    engine = TorchEngine(model, max_num_seqs=slots, max_model_len=len(PROMPT) + new_tokens)
    engine.resume_generation().result()
    sampling = SamplingParams(max_tokens=new_tokens)
    start = time.perf_counter()
    futures = [
        engine.generate(GenerationRequest(str(i), PROMPT, ((),) * GROUP, (new_tokens,) * GROUP, sampling))
        for i in range(num_groups)
    ]
    tokens = sum(len(output.token_ids) for future in futures for output in future.result())
    elapsed = time.perf_counter() - start
    engine.close()
    return tokens / elapsed


def generate_rate(model: LlamaForCausalLM, slots: int, new_tokens: int) -> float:
    prompts = torch.tensor([PROMPT] * slots)
    start = time.perf_counter()
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        max_new_tokens=new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    torch.stack(output.logits, 1).log_softmax(-1).gather(2, output.sequences[:, len(PROMPT) :, None])
    return slots * new_tokens / (time.perf_counter() - start)


def measure(model: LlamaForCausalLM, slots: int, new_tokens: int, repeats: int) -> dict[str, float]:
    num_groups = max(1, slots // GROUP) * 4
    rates: dict[str, list[float]] = {"engine": [], "engine_short": [], "generate": []}
    for _ in range(repeats):
        rates["engine"].append(engine_rate(model, slots, new_tokens, num_groups))
        rates["engine_short"].append(engine_rate(model, slots, 11, num_groups * 4))
        rates["generate"].append(generate_rate(model, slots, new_tokens))
    row = {f"{name}_tokens_per_s": statistics.median(values) for name, values in rates.items()}
    row["ratio"] = row["engine_tokens_per_s"] / row["generate_tokens_per_s"]
    return {"slots": slots, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny_model()
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {args.new_tokens} new tokens, one thread; tokens/s, median of {args.repeats}")
    print(f"{'slots':>6} {'engine':>9} {'short':>9} {'generate':>9} {'engine/generate':>16}")
    measure(model, 8, 16, 1)
    rows = []
    for slots in args.slots:
        row = measure(model, slots, args.new_tokens, args.repeats)
        rows.append(row)
        rates = [row[f"{name}_tokens_per_s"] for name in ("engine", "engine_short", "generate")]
        print(f"{slots:>6} {rates[0]:>9.0f} {rates[1]:>9.0f} {rates[2]:>9.0f} {row['ratio']:>15.1f}x")
    if args.json is not None:
        report = {"num_parameters": size, "new_tokens": args.new_tokens, "rows": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
