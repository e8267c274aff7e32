"""Seconds the train worker needs for one collection, on the default task's shape or your own.

    python benchmarks/training.py [--hidden 64 --layers 3] [--prompt 4 8 --response 5 9] [--json FILE]

Random tokens and rewards: learning is not measured, only work. One torch thread unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swingshift.config.schema import ActorConfig
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.training.worker import TorchTrainWorker

VOCAB = 64


def build_model(hidden: int, layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def build_groups(args: argparse.Namespace) -> list[SampleGroup]:
    rng = random.Random(0)
    groups = []
    for i in range(args.groups):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(*args.prompt)))
        samples = tuple(build_sample(rng, rng.randint(*args.response), float(j % 2)) for j in range(args.n))
        groups.append(SampleGroup(i, Prompt(str(i), prompt), samples, 0))
    return groups


def build_sample(rng: random.Random, length: int, reward: float) -> Sample:
    tokens = tuple(rng.randrange(VOCAB) for _ in range(length))
    return Sample(tokens, (-4.16,) * length, ((0, length),), FinishReason.STOP, reward=reward)


def measure(args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    actor = ActorConfig.model_validate(
        {
            "ppo_mini_batch_size": args.mini_batch,
            "ppo_max_token_len_per_gpu": args.max_tokens,
            "optim": {"lr": 1e-6},
        }
    )
    worker = TorchTrainWorker(build_model(args.hidden, args.layers), actor)
    groups = build_groups(args)
    result = worker.train(groups, 0)
    seconds = []
    for version in range(args.repeats):
        start = time.perf_counter()
        worker.train(groups, version)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    buffer, _ = worker.pack_weights()
    pack_s = time.perf_counter() - start
    median = statistics.median(seconds)
    response_tokens = sum(g.num_tokens for g in groups)
    separate = sum((len(g.prompt.token_ids) + len(s.token_ids) - 1) for g in groups for s in g.samples)
    return {
        "num_responses": args.groups * args.n,
        "num_response_tokens": response_tokens,
        "num_input_tokens": result.metrics["actor/num_input_tokens"],
        "num_input_tokens_unshared_unpadded": separate,
        "num_parameters": sum(p.numel() for p in worker.model.parameters()),
        "collection_s_median": median,
        "collection_s_min": min(seconds),
        "response_tokens_per_s": response_tokens / median,
        "sequence_tokens_per_s": separate / median,
        "pack_weights_s": pack_s,
        "weights_bytes": buffer.nbytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32, help="groups in a collection")
    parser.add_argument("--n", type=int, default=16, help="responses in a group")
    parser.add_argument("--mini-batch", type=int, default=8, help="groups per optimizer step")
    parser.add_argument("--prompt", type=int, nargs=2, default=(5, 9), metavar=("MIN", "MAX"), help="tokens")
    parser.add_argument("--response", type=int, nargs=2, default=(5, 9), metavar=("MIN", "MAX"), help="tokens")
    parser.add_argument("--max-tokens", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    numbers = measure(args)
    for name, value in numbers.items():
        print(f"{name:36s} {value:,.4g}" if isinstance(value, float) else f"{name:36s} {value:,}")
    if args.json:
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
