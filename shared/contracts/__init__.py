"""Every message that crosses a topic, its schema name and version."""

from shared.contracts.arrays import Float32Array, Int32Array, MaskArray
from shared.contracts.base import Message
from shared.contracts.codec import MESSAGES, decode, encode, schema_header
from shared.contracts.continuation import Continuation, SampledTurn, ToolAnswer, ToolTurn, WorkspaceRef
from shared.contracts.control import Control, DomainResult, Evaluation
from shared.contracts.headers import Headers
from shared.contracts.policy import Canary, DeltaRef, Policy, TensorEntry, WeightsRef
from shared.contracts.reward import FAULTS, Reward, Verdict
from shared.contracts.slot import Fate, Purpose, Slot, Stage
from shared.contracts.step import DomainReward, GroupFate, Notice, Step
from shared.contracts.task import ChatMessage, DomainRef, Limits, Role, Sampling, Task
from shared.contracts.tool_call import ToolCall
from shared.contracts.trajectory import (
    NOT_SAMPLED,
    RoleSpan,
    SamplingMode,
    Sequence,
    StopReason,
    Timings,
    Trajectory,
    VersionSpan,
)
from shared.contracts.worker import Heartbeat, Service, WorkerState

__all__ = [
    "FAULTS", "MESSAGES", "NOT_SAMPLED", "Canary", "ChatMessage", "Continuation", "Control", "DeltaRef", "DomainRef", "DomainResult",
    "DomainReward", "Evaluation", "Fate", "Float32Array", "GroupFate", "Headers", "Heartbeat", "Int32Array",
    "Limits", "MaskArray", "Message", "Notice", "Policy", "Purpose", "Reward", "Role", "RoleSpan", "SampledTurn", "Sampling",
    "SamplingMode", "Sequence", "Service", "Slot", "Stage", "Step", "StopReason", "Task", "TensorEntry", "Timings",
    "ToolAnswer", "ToolCall", "ToolTurn", "Trajectory", "Verdict", "VersionSpan", "WeightsRef", "WorkerState", "WorkspaceRef", "decode", "encode", "schema_header",
]  # fmt: skip
