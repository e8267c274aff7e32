"""The sections below ``actor_rollout_ref``: the model, how it is trained, and the engines that sample from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from swingshift.config.section import Section
from swingshift.config.step_schema import DisaggregationConfig


class WarmStartConfig(Section):
    """Supervised warm start of `model.path=builtin:tiny` on the built-in task's own solutions."""

    steps: int = Field(default=100, ge=0, description="Supervised steps before reinforcement learning; 0: none.")
    batch_size: PositiveInt = Field(default=128, description="Solved examples per supervised step.")
    lr: float = Field(default=3e-3, gt=0, description="Learning rate of the supervised steps (AdamW).")
    until_loss: float | None = Field(
        default=None,
        gt=0,
        description="Stop early once the loss per token is below this. A sampled answer of n tokens is then right "
        "with a probability of about exp(-n × loss), whatever the seed.",
    )


class ModelConfig(Section):
    """The language model that learns."""

    path: str = Field(
        default="builtin:tiny", min_length=1, description="Hugging Face folder or hub id, or `builtin:tiny`."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="float32", description="Type of the weights.")
    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
    hidden_size: PositiveInt = Field(default=64, description="Of `builtin:tiny`.")
    num_layers: PositiveInt = Field(default=3, description="Of `builtin:tiny`.")
    num_heads: PositiveInt = Field(default=2, description="Of `builtin:tiny`.")
    warm_start: WarmStartConfig = WarmStartConfig()

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> ModelConfig:
        # Rotary position embeddings turn pairs of dimensions, so a head needs an even number of them.
        if self.path == "builtin:tiny" and self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size={self.hidden_size}: is not a multiple of 2 × num_heads={self.num_heads}; "
                f"give e.g. {2 * self.num_heads * max(1, round(self.hidden_size / (2 * self.num_heads)))}"
            )
        return self


class OptimConfig(Section):
    """AdamW."""

    lr: float = Field(default=1e-6, gt=0, description="Learning rate.")
    lr_warmup_steps: int = Field(default=0, ge=0, description="Optimizer steps of linear warm-up.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay.")
    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="Decay rates of the two moments, each in [0, 1)."
    )

    @field_validator("betas")
    @classmethod
    def _decay(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("is out of range; give two numbers of at least 0 and below 1")
        return betas


class ActorConfig(Section):
    """How the policy model is trained."""

    ppo_mini_batch_size: PositiveInt = Field(default=256, description="Sample groups (prompts) per optimizer step.")
    ppo_epochs: PositiveInt = Field(default=1, description="Passes over each collection.")
    ppo_max_token_len_per_gpu: PositiveInt = Field(
        default=16384, description="Tokens (padding included) of one forward/backward micro-batch."
    )
    clip_ratio: float = Field(default=0.2, gt=0, description="Clip range of the probability ratio, both sides.")
    clip_ratio_low: float | None = Field(default=None, gt=0, description="Falls back to `clip_ratio`.")
    clip_ratio_high: float | None = Field(default=None, gt=0, description="Falls back to `clip_ratio`.")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = Field(
        default="token-mean", description="Mean over all tokens, or over responses of their token means."
    )
    entropy_coeff: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    use_kl_loss: bool = Field(default=False, description="Add a KL penalty towards the frozen initial model.")
    kl_loss_coef: float = Field(default=0.001, ge=0, description="Weight of the KL penalty.")
    kl_loss_type: Literal["kl", "k2", "low_var_kl"] = Field(default="low_var_kl", description="KL estimator.")
    grad_clip: float = Field(default=1.0, gt=0, description="Maximum gradient norm.")
    optim: OptimConfig = OptimConfig()
    optimizer_offload: bool = Field(
        default=True, description="While the device is lent, keep optimizer state in host memory."
    )
    free_gradients: bool = Field(default=True, description="While the device is lent, free gradients.")

    @property
    def clip_low(self) -> float:
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def clip_high(self) -> float:
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high


class ValKwargsConfig(Section):
    """Sampling during validation."""

    temperature: float = Field(default=0.0, ge=0, description="0: greedy.")
    n: PositiveInt = Field(default=1, description="Responses per validation prompt.")


class RolloutEngineConfig(Section):
    """The inference engines and how they sample."""

    name: Literal["torch"] = Field(default="torch", description="Inference engine.")
    n: PositiveInt = Field(default=8, le=10_000, description="Responses per prompt.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Keep the likeliest tokens up to this mass; 1: all.")
    top_k: int = Field(default=-1, ge=-1, description="Keep this many likeliest tokens; -1: all.")
    response_length: PositiveInt = Field(default=512, description="Tokens a response may have.")
    max_num_seqs: PositiveInt = Field(default=64, description="Responses one replica decodes at once.")
    gpu_memory_utilization: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Memory fraction of hybrid replicas (they share the device with training).",
    )
    standalone_gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Memory fraction of standalone replicas; null: `gpu_memory_utilization`.",
    )
    kv_cache_memory_bytes: PositiveInt | None = Field(
        default=None,
        description="KV cache of one replica; unset: from the memory fraction (GPU) or `max_num_seqs` (CPU).",
    )
    free_cache_engine: bool = Field(default=True, description="Free the KV cache during weight syncs and sleep.")
    partial_rollout: bool = Field(
        default=True, description="Resume aborted responses with the tokens they have; off: start them over."
    )
    routing: Literal["least_inflight", "least_tokens", "power_of_two", "deterministic"] = Field(
        default="least_inflight", description="How a replica is chosen for a new request."
    )
    val_kwargs: ValKwargsConfig = ValKwargsConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()

    @field_validator("top_k")
    @classmethod
    def _zero_means_nothing(cls, top_k: int) -> int:
        if top_k == 0:
            raise ValueError("would keep no token; give -1 to keep all, or a number above 0")
        return top_k

    @property
    def standalone_memory_utilization(self) -> float:
        own = self.standalone_gpu_memory_utilization
        return self.gpu_memory_utilization if own is None else own


class ActorRolloutRefConfig(Section):
    """The model, its training and its inference."""

    model: ModelConfig = ModelConfig()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutEngineConfig = RolloutEngineConfig()
