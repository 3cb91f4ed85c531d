"""A run's configuration: one TOML file, checked before any work starts.

Invariant: a key that is not read is refused with the nearest known name; a value of another type is refused
with its place in the file. The environment overrides any scalar key: `TEMPER_<SECTION>__<KEY>=value`
(`TEMPER_BUS__BOOTSTRAP_SERVERS=host:9092`). Secrets come from the environment only.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shared.episode_settings import EpisodeSettings
from shared.errors import ConfigError
from shared.plain_errors import explain, nearest, said
from shared.sandbox.settings import SandboxSettings
from shared.weights.settings import PublishingSettings

ENVIRONMENT_PREFIX = "TEMPER_"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class RunSettings(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Also the run_id; a second start with the same name resumes."""
    seed: int = Field(default=0, ge=0)
    folder: str = "runs"
    """The run writes into `<folder>/<name>`."""


class BusSettings(Section):
    bootstrap_servers: str = ""
    """Comma separated `host:port`. Empty: `temper up` starts the dev broker in the run's folder."""
    namespace: str = Field(default="temper", pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    partitions: int = Field(default=4, ge=1, le=1000)
    """Of every tasks, trajectories and rewards topic."""
    replication_factor: int = Field(default=1, ge=1)
    connect_timeout_s: float = Field(default=60.0, gt=0)
    """How long a service waits for its broker and topics before it ends with exit code 3."""
    claim_check_bytes: int = Field(default=256 * 1024, ge=1024)
    max_record_bytes: int = Field(default=1_000_000, ge=2048)
    """Refused above it. Apache Kafka's own default limit is 1,048,588 with overhead."""
    session_timeout_ms: int = Field(default=15_000, ge=1000)
    rebalance: Literal["cooperative", "eager"] = "cooperative"
    retry_delays_s: tuple[float, ...] = (1.0, 10.0, 60.0)
    max_attempts: int = Field(default=4, ge=1)
    """Deliveries of one record before it is a dead letter."""
    drain_s: float = Field(default=20.0, gt=0)
    """How long running handlers may go on when partitions are revoked or the service stops."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _is_an_address(cls, servers: str) -> str:
        for server in filter(None, (part.strip() for part in servers.split(","))):
            host, _, port = server.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server!r} is no address of a broker: write host:port, port 1 to 65535")
        return servers


class StorageSettings(Section):
    uri: str = ""
    """fsspec URI of the object store; empty: `<run folder>/objects`."""
    cache_bytes: int = Field(default=0, ge=0)
    """What a rollout process keeps of policies beside the one that it serves; 0: nothing."""
    patience_s: float = Field(default=180.0, gt=0)
    """How long the learner waits for a remote store that does not answer, and how long a rollout process goes on with
    the policy that it has while a newer one cannot be read. Then the process ends with exit code 5."""


class ModelSettings(Section):
    path: str
    """A Hugging Face folder: configuration, tokenizer, safetensors."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    chat_template: str = ""
    """Overrides the tokenizer's Jinja template."""


class WorkloadSettings(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]{0,30}$")
    priorities: tuple[str, ...] = ("high", "normal", "low")
    """Highest first."""
    priority_weights: tuple[int, ...] = (8, 3, 1)
    episode: EpisodeSettings = EpisodeSettings()
    """How attempts with tools and turns are made at tasks of this workload."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> WorkloadSettings:
        if len(self.priorities) != len(self.priority_weights):
            raise ValueError(
                f"{len(self.priorities)} priorities and {len(self.priority_weights)} weights: give one weight each"
            )
        return self


class DomainSettings(Section):
    name: str
    weight: float = Field(default=1.0, gt=0)
    difficulty: dict[str, Any] = Field(default_factory=dict)
    workload: str = "single_turn"
    max_tokens: int = Field(default=32, ge=1)
    """Sampled in one turn."""
    episode: EpisodeSettings = EpisodeSettings()
    """What is different from the workload's, key by key."""


class ObjectiveSettings(Section):
    """A preset's name (or that of an `[objectives.<name>]` table), and what this stage changes of it.

    Names and values are checked by the learner, which knows them, before any work starts.
    """

    preset: str = "grpo"
    overrides: dict[str, Any] = Field(default_factory=dict)


class StageSettings(Section):
    kind: Literal["sft", "preference", "rl"]
    steps: int = Field(ge=1)
    groups_per_step: int = Field(default=8, ge=1)
    """Groups a step learns from: a demonstration (`sft`), a pair (`preference`) or a group of attempts (`rl`) each."""
    group_size: int = Field(default=8, ge=1)
    """Attempts per instance; always 1 for `sft`, and 2 for pairs of a data set."""
    oversample: int = Field(default=0, ge=0)
    """Attempts more than `group_size`: a group is complete with the first `group_size` that end, and the others are
    cut short. Long answers are then rarer in what is learnt from than in what was sampled."""
    data: str = ""
    """A JSONL file to learn from instead of the domains: `messages` a line for `sft`; `prompt` or `messages`, `chosen`
    and `rejected` for `preference`. Without one `sft` imitates the domains' oracles, and `preference` pairs the best
    with the worst attempt of each group."""
    start_from: str = ""
    """The weights that the stage begins with: a Hugging Face folder, or a checkpoint's folder. Empty: as the stage
    before left them, or `model.path`."""
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    objective: ObjectiveSettings = ObjectiveSettings()
    domains: tuple[str, ...] = ()
    """Which domains take part (of a stage with `data`: which are evaluated at its end); empty is all."""

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> StageSettings:
        if self.kind == "rl" and self.data:
            raise ValueError(
                "an rl stage learns from verified attempts: it has no data; use sft or preference"
            )
        if self.kind != "sft" and not self.data and self.group_size < 2:
            lacks = "has no advantage" if self.kind == "rl" else "makes no pair"
            raise ValueError(f"group_size is {self.group_size}: a group of one {lacks}; use at least 2")
        if self.oversample and (self.kind == "sft" or self.data):
            raise ValueError(
                f"oversample is {self.oversample}, and in a stage of demonstrations or data nothing is sampled: leave it out"
            )
        return self

    @property
    def samples(self) -> int:
        """Slots of a group."""
        if self.kind == "sft":
            return 1
        return 2 if self.data else self.group_size + self.oversample

    @property
    def enough(self) -> int:
        """Usable attempts with which a group is complete."""
        return self.samples - self.oversample


class SchedulerSettings(Section):
    max_lag: int = Field(default=1, ge=0)
    """Policy versions a trained token may be behind; 0 is the synchronous mode."""
    group_deadline_s: float = Field(default=300.0, gt=0)
    """After it a group is scheduled again as a new attempt."""
    max_group_attempts: int = Field(default=3, ge=1)
    stall_s: float = Field(default=600.0, gt=0)
    """No progress for so long ends the run with a reason."""


class EvaluationSettings(Section):
    every_steps: int = Field(default=0, ge=0)
    """0: only at the start, at the end of each stage and at the end of the run."""
    instances_per_domain: int = Field(default=64, ge=1)
    at_start: bool = True
    temperature: float = Field(default=0.0, ge=0)


class RolloutSettings(Section):
    processes: int = Field(default=1, ge=0)
    engine: Literal["transformers", "vllm", "openai", "instant"] = "transformers"
    """`vllm` wants the extra of that name, `openai` a server at `server`. `instant` answers from a table without a
    model: it measures the loop, not the policy."""
    follow: Literal["in_flight", "between_turns", "drain"] = "in_flight"
    """When a new policy goes in: between two tokens of what runs, between two turns, or between two episodes."""
    server: str = ""
    """Of the engine `openai`: the base URL, `http://host:port/v1`. Its key comes from OPENAI_API_KEY."""
    server_model: str = ""
    """The model's name there; empty: the first that the server lists."""
    hand_back: Literal["never", "shutdown", "publish"] = "shutdown"
    """When attempts that run are handed back to their topic, with what was sampled of them, for another process to go on
    with: at the end of a shutdown's `bus.drain_s`; with `publish` also when a new policy waits to go in."""
    workloads: tuple[str, ...] = ()
    max_batch: int = Field(default=64, ge=1)
    """Sequences decoded together."""
    max_batch_tokens: int = Field(default=16_384, ge=64)
    """Key-value slots: sum over running sequences of prompt + max_tokens."""
    concurrency: int = Field(default=16, ge=1)
    """Tasks handled at once, of all workloads."""
    adapt_concurrency: bool = True
    """Fewer tasks of a workload at once than `concurrency` where the engine's key-value room is short."""
    threads: int = Field(default=0, ge=0)
    """Of torch; 0 leaves its own choice."""
    device: str = "auto"

    @model_validator(mode="after")
    def _has_a_server(self) -> RolloutSettings:
        if self.engine == "openai" and not self.server.startswith(("http://", "https://")):
            raise ValueError(
                f"rollout.server is {self.server!r} and rollout.engine is 'openai': give the server's base URL, "
                "such as http://127.0.0.1:8000/v1"
            )
        return self


class VerifierSettings(Section):
    processes: int = Field(default=1, ge=0)
    workloads: tuple[str, ...] = ()
    concurrency: int = Field(default=32, ge=1)
    children: int = Field(default=1, ge=1)
    """Killable child processes that run comparators."""
    check_seconds: float = Field(default=5.0, gt=0)
    """Wall limit of one check; past it the child is killed and the attempt is a fault of ours."""
    sandbox_seconds: float = Field(default=60.0, gt=0)
    """Most wall time of a check in a sandbox. A domain that declares more for it is a fault, never cut short."""
    sandbox_cpus: float = Field(default=0.0, ge=0)
    """CPUs that checks in sandboxes may occupy together; 0: all that this process may use."""
    sandbox_memory_mb: int = Field(default=0, ge=0)
    """Memory likewise, in MiB; 0: half of the machine's."""
    breaker_share: float = Field(default=2 / 3, gt=0, le=1)
    """A domain is held back when so many of its last `breaker_window` checks (at least `breaker_least`) were faults."""
    breaker_least: int = Field(default=12, ge=1)
    breaker_window: int = Field(default=48, ge=1)

    @model_validator(mode="after")
    def _the_window_holds_enough(self) -> VerifierSettings:
        if self.breaker_window < self.breaker_least:
            raise ValueError(
                f"breaker_window is {self.breaker_window} and breaker_least {self.breaker_least}: "
                "the breaker could never trip; make the window at least as large"
            )
        return self


class AuditRule(Section):
    """Hold a domain back when `share` of its newest attempts (at least `least` of them) carry `flag`."""

    flag: str
    """`*`: any one flag that a detector finds in an attempt."""
    share: float = Field(default=0.5, gt=0, le=1)
    least: int = Field(default=64, ge=1, le=256)


class AuditorSettings(Section):
    share: float = Field(default=0.01, ge=0, le=1)
    """Of attempts that get a second, independent check: a child that served nobody before, a jail of its own."""
    repeat_share: float = Field(default=0.02, ge=0, le=1)
    """Of attempts that are checked `repeats` times more to find domains with two verdicts on one attempt."""
    repeats: int = Field(default=2, ge=1, le=100)
    rules: tuple[AuditRule, ...] = (AuditRule(flag="*"),)
    """When flags hold a domain back. An empty list: flags are only told."""
    never_hold: tuple[str, ...] = ()
    """Domains that no finding holds back: it is logged all the same."""


class KeepSettings(Section):
    """Which checkpoints keep their weights beside the newest `learner.keep_checkpoints` and those that the guard may
    go back to."""

    every: int = Field(default=0, ge=0)
    """Each step that it divides; 0: none."""
    best: int = Field(default=0, ge=0)
    """So many of the highest held-out pass rate."""
    best_of: str = ""
    """The domain whose pass rate counts; empty: all together."""


class ParallelSettings(Section):
    """How several learner processes share the work. Without any of it each has the whole model and a share of every
    batch."""

    shard: bool = False
    """Weights, gradients and moments in pieces, one a process (FSDP2)."""
    context: int = Field(default=1, ge=1)
    """Processes that each sequence is spread over; the rest of their number shares the batch."""
    timeout_s: float = Field(default=1800.0, ge=10)
    """How long a process waits for another before all of them end."""


class LoraSettings(Section):
    """Trains low-rank adapters beside the model's weights, which stay as they are; policies are published as adapters."""

    rank: int = Field(default=0, ge=0)
    """0: the weights themselves are trained."""
    alpha: float = Field(default=0.0, ge=0)
    """What an adapter adds is scaled by alpha / rank; 0: as large as the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers by the end of their name, such as "q_proj"; none: all but the head."""


class LearnerSettings(Section):
    processes: int = Field(default=1, ge=1)
    """Of the one learner, on this machine; `torchrun` starts them on several."""
    parallel: ParallelSettings = ParallelSettings()
    lora: LoraSettings = LoraSettings()
    micro_batch_tokens: int = Field(default=4096, ge=16)
    """Padded tokens in one forward and backward pass, at most; a batch is cut into equal ones."""
    logit_chunk_mb: int = Field(default=256, ge=1)
    """MiB of the largest array of logits. Logits beyond it are made in chunks and made again in the backward pass."""
    attention: Literal["auto", "mask", "blocks"] = "auto"
    """Of rows that share a line, each blind to the others. `blocks`: a kernel that computes what is seen and no more
    (flex_attention); `auto`: on CUDA, where it gives the numbers of a mask when the model is loaded."""
    activation_checkpointing: bool = False
    """Keep each layer's input alone and compute the layer again in the backward pass: less memory, more time."""
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    max_gradient_norm: float = Field(default=1.0, gt=0)
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps between checkpoints; a policy is published with each."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest; older ones are stripped of weights and optimizer."""
    keep: KeepSettings = KeepSettings()
    threads: int = Field(default=0, ge=0)
    device: str = "auto"
    max_buffered_groups: int = Field(default=64, ge=1)
    """Back-pressure: trajectories wait in their topics beyond it."""
    canary_tolerance: float = Field(default=1e-3, gt=0)


GuardMetric = Literal[
    "kl",
    "entropy",
    "gradient_norm",
    "reward_jump",
    "not_finite",
    "logprob_gap_mean",
    "logprob_gap_max",
    "effective_sample_size",
    "clip_fraction",
]
"""What the guard is told of a step."""


class GuardBound(Section):
    """One declared bound: past `limit` for `patience` steps in a row, `action` is taken."""

    metric: GuardMetric
    """`reward_jump`: of one domain's mean reward from its own recent mean, in units of reward."""
    limit: float = 0.0
    side: Literal["natural", "above", "below"] = "natural"
    """Which side of the limit is out of bounds; natural: below for entropy and effective sample size, else above."""
    action: Literal["lower_rate", "skip_batch", "roll_back", "pause"] = "pause"
    patience: int = Field(default=1, ge=1)


class GuardSettings(Section):
    """What a step may look like before the learner does something about it. After a pause `temper resume` goes on."""

    bounds: tuple[GuardBound, ...] = ()
    window: int = Field(default=16, ge=2)
    """Steps whose mean a reward is compared with; no jump is seen before half of them are there."""
    rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """`lower_rate` multiplies the learning rate by it, and so does a roll-back: the same rate would fail again."""
    lowest_rate: float = Field(default=0.01, gt=0, le=1)
    """The rate is never lowered below this share of what the stage says."""
    recovery_steps: int = Field(default=20, ge=1)
    """Quiet steps after which one lowering is taken back."""
    max_roll_backs: int = Field(default=3, ge=0)
    """In one stage; one more would be a pause."""
    max_skips: int = Field(default=3, ge=0)
    """Batches in a row; one more would be a pause: by then it is not the data."""
    named: int = Field(default=8, ge=1)
    """Trajectories that a decision names for each bound."""

    @model_validator(mode="after")
    def _declared_once(self) -> GuardSettings:
        seen = set()
        for bound in self.bounds:
            key = (bound.metric, bound.side, bound.limit, bound.action)
            if key in seen:
                raise ValueError(
                    f"the bound {bound.limit:g} on {bound.metric} with action {bound.action!r} is declared twice; "
                    "keep one"
                )
            seen.add(key)
        return self


class TelemetrySettings(Section):
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    traces: Literal["file", "otlp", "none"] = "file"
    """`otlp` is chosen by itself where OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    heartbeat_s: float = Field(default=2.0, gt=0)


class Settings(Section):
    run: RunSettings
    bus: BusSettings = BusSettings()
    storage: StorageSettings = StorageSettings()
    publishing: PublishingSettings = PublishingSettings()
    model: ModelSettings
    workloads: tuple[WorkloadSettings, ...] = (WorkloadSettings(name="single_turn"),)
    domains: tuple[DomainSettings, ...] = Field(min_length=1)
    objectives: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Objectives of one's own: `[objectives.mine]` with the `preset` it begins from and what it changes."""
    stages: tuple[StageSettings, ...] = Field(min_length=1)
    scheduler: SchedulerSettings = SchedulerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    rollout: RolloutSettings = RolloutSettings()
    verifier: VerifierSettings = VerifierSettings()
    auditor: AuditorSettings = AuditorSettings()
    sandbox: SandboxSettings = SandboxSettings()
    learner: LearnerSettings = LearnerSettings()
    guard: GuardSettings = GuardSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @model_validator(mode="after")
    def _names_exist(self) -> Settings:
        workloads = {workload.name for workload in self.workloads}
        domains = {domain.name for domain in self.domains}
        for domain in self.domains:
            _known("domain workload", domain.workload, workloads)
        for stage in self.stages:
            for name in stage.domains:
                _known("stage domain", name, domains)
        if self.learner.keep.best_of:
            _known("learner.keep.best_of domain", self.learner.keep.best_of, domains)
        for name in self.auditor.never_hold:
            _known("auditor.never_hold domain", name, domains)
        for section in (self.rollout, self.verifier):
            for name in section.workloads:
                _known("workload", name, workloads)
        for domain in self.domains:
            self._check_episode(domain)
        if self.learner.checkpoint_every - 1 > self.scheduler.max_lag:
            raise ValueError(
                f"learner.checkpoint_every is {self.learner.checkpoint_every} and scheduler.max_lag is "
                f"{self.scheduler.max_lag}: tokens would be older than allowed before a newer policy is published; "
                "set max_lag to at least checkpoint_every - 1"
            )
        return self

    def _check_episode(self, domain: DomainSettings) -> None:
        try:
            episode = self.episode_of(domain.name)
        except ValidationError as error:
            raise ValueError(
                explain(EpisodeSettings, error, f"the episode of domain {domain.name!r}")
            ) from error
        deadline_s = self.scheduler.group_deadline_s
        if episode.wall_seconds > deadline_s:
            raise ValueError(
                f"an attempt at domain {domain.name!r} may take {episode.wall_seconds:g} s and its group has "
                f"{deadline_s:g} s: lower its wall_seconds or raise scheduler.group_deadline_s"
            )

    def episode_of(self, domain: str) -> EpisodeSettings:
        """Of a declared domain: its workload's, with what the domain changes. Raises `KeyError` for another name."""
        declared = {item.name: item for item in self.domains}[domain]
        workload = {item.name: item for item in self.workloads}[declared.workload]
        return workload.episode.changed_by(declared.episode)

    @property
    def run_folder(self) -> Path:
        return Path(self.run.folder).absolute() / self.run.name

    @property
    def storage_uri(self) -> str:
        return self.storage.uri or f"file://{self.run_folder / 'objects'}"


def _known(what: str, name: str, known: set[str]) -> None:
    if name not in known:
        raise ValueError(
            f"{what} {name!r} is not declared; declared: {', '.join(sorted(known))}{nearest(name, known)}"
        )


def load_settings(path: str | Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The checked settings of a TOML file, with the environment's overrides.

    Raises `ConfigError` in one line: file unreadable, TOML broken, key unknown (nearest name given), value wrong.
    """
    place = Path(path)
    try:
        document = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{place}: no such file; give the path of a run's TOML") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{place}: is a folder; give the path of a run's TOML, such as {place / 'run.toml'}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: cannot be read: {said(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: not valid TOML: {error}") from error
    _override(document, os.environ if environment is None else environment)
    return parse_settings(document, source=str(place))


def parse_settings(document: Mapping[str, Any], source: str = "settings") -> Settings:
    """As `load_settings`, from a document that is already there."""
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(Settings, error)}") from error


def _override(document: dict[str, Any], environment: Mapping[str, str]) -> None:
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, key = variable[len(ENVIRONMENT_PREFIX) :].lower().split("__", 1)
        if section not in Settings.model_fields:
            names = set(Settings.model_fields)
            raise ConfigError(
                f"environment {variable}: there is no section {section!r}{nearest(section, names)}"
            )
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"environment {variable}: [[{section}]] is a list; change it in the file")
        table[key] = _scalar(text)


def _scalar(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
