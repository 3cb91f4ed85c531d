"""The table of requests that the broker answers: classes, versions, handlers, and how each is refused.

Invariant: what ApiVersions announces is exactly what the table serves. Transactions and the newer group protocol are
not announced, so clients fall back or say clearly that the broker lacks them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin as admin_messages
from kafka.protocol import consumer as consumer_messages
from kafka.protocol import metadata as metadata_messages
from kafka.protocol import producer as producer_messages
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from shared.bus.devbroker import admin, configs_api, fetch, groups_api, metadata, offsets_api, produce
from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code

Handler = Callable[[Broker, Caller, Any], Awaitable[Any]]
Refuser = Callable[[Broker, Caller, Any, Code], Any]


@dataclass(frozen=True)
class Api:
    """One kind of request. `refuse` makes its answer for an injected error, where there is such an answer."""

    key: int
    name: str
    request_class: Any
    min_version: int
    max_version: int
    handle: Handler
    refuse: Refuser | None = None

    def header_is_flexible(self, version: int) -> bool:
        """Whether its answer's header has tagged fields; ApiVersions never does, for clients that guess (KIP-511)."""
        return self.key != ApiVersionsRequest.API_KEY and bool(self.request_class.flexible_version_q(version))


def _plain(refuse: Callable[[Any, Code], Any]) -> Refuser:
    return lambda broker, caller, request, code: refuse(request, code)


def _top_level(response_class: Any, **empty: Any) -> Refuser:
    return lambda broker, caller, request, code: response_class(error_code=code, **empty)


async def api_versions(broker: Broker, caller: Caller, request: Any) -> Any:
    return announced(Code.NONE)


def announced(code: Code) -> Any:
    """The table as ApiVersions tells it."""
    row = ApiVersionsResponse.ApiVersion
    return ApiVersionsResponse(
        error_code=code,
        api_keys=[
            row(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
        ],
    )


def _table() -> dict[int, Api]:
    apis: dict[int, Api] = {}

    def serve(
        module: Any, name: str, handle: Handler, refuse: Refuser | None = None, max_version: int = 99
    ) -> None:
        request_class = getattr(module, f"{name}Request")
        low, high = request_class.valid_versions
        apis[request_class.API_KEY] = Api(
            request_class.API_KEY, name, request_class, low, min(high, max_version), handle, refuse
        )

    serve(producer_messages, "Produce", produce.produce, _plain(produce.refuse_produce))
    serve(consumer_messages, "Fetch", fetch.fetch, _plain(fetch.refuse_fetch))
    serve(consumer_messages, "ListOffsets", fetch.list_offsets, _plain(fetch.refuse_list_offsets))
    serve(metadata_messages, "Metadata", metadata.metadata, metadata.refuse_metadata)
    serve(
        consumer_messages, "OffsetCommit", offsets_api.offset_commit, _plain(offsets_api.refuse_offset_commit)
    )
    serve(consumer_messages, "OffsetFetch", offsets_api.offset_fetch, _plain(offsets_api.refuse_offset_fetch))
    serve(metadata_messages, "FindCoordinator", metadata.find_coordinator, metadata.refuse_find_coordinator)
    serve(consumer_messages, "JoinGroup", groups_api.join_group, _plain(groups_api.refuse_join_group))
    serve(
        consumer_messages, "Heartbeat", groups_api.heartbeat, _top_level(consumer_messages.HeartbeatResponse)
    )
    serve(
        consumer_messages,
        "LeaveGroup",
        groups_api.leave_group,
        _top_level(consumer_messages.LeaveGroupResponse, members=[]),
    )
    serve(consumer_messages, "SyncGroup", groups_api.sync_group, _plain(groups_api.refuse_sync_group))
    serve(admin_messages, "DescribeGroups", groups_api.describe_groups)
    serve(
        admin_messages,
        "ListGroups",
        groups_api.list_groups,
        _top_level(admin_messages.ListGroupsResponse, groups=[]),
    )
    serve(metadata_messages, "ApiVersions", api_versions)
    serve(admin_messages, "CreateTopics", admin.create_topics, _plain(admin.refuse_create_topics))
    serve(admin_messages, "DeleteTopics", admin.delete_topics)
    serve(admin_messages, "DeleteRecords", admin.delete_records)
    serve(
        producer_messages,
        "InitProducerId",
        produce.init_producer_id,
        _plain(produce.refuse_init_producer_id),
        max_version=5,
    )
    serve(consumer_messages, "OffsetForLeaderEpoch", fetch.offset_for_leader_epoch)
    serve(admin_messages, "DescribeConfigs", configs_api.describe_configs)
    serve(admin_messages, "AlterConfigs", configs_api.alter_configs)
    serve(admin_messages, "CreatePartitions", admin.create_partitions)
    serve(admin_messages, "DeleteGroups", groups_api.delete_groups)
    serve(admin_messages, "IncrementalAlterConfigs", configs_api.incremental_alter_configs)
    serve(consumer_messages, "OffsetDelete", offsets_api.offset_delete)
    serve(admin_messages, "DescribeCluster", metadata.describe_cluster)
    return dict(sorted(apis.items()))


APIS = _table()
