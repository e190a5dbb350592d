"""The memory that a server keeps, as docs/operations.md lists it: its bounds, and a test for each row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geartrain.apis import infer_json
from geartrain.apis.anthropic import batches as message_batches
from geartrain.apis.openai import batches
from geartrain.authoring import joining, scope
from geartrain.bridge import payloads
from geartrain.bridge.model_calls import MOST
from geartrain.cli import background_logs
from geartrain.domain.predictions import own_metrics
from geartrain.domain.predictions.batch_jobs import PIECE
from geartrain.domain.predictions.caching import DEFAULT_BYTES
from geartrain.domain.predictions.events import DEFAULT_CAPACITY, MAX_PRINTED
from geartrain.domain.predictions.prediction import MAX_CALL_TEXT, MAX_CALLS
from geartrain.domain.printed import screen
from geartrain.domain.printed.text import MAX_TEXT
from geartrain.ipc import memory
from geartrain.outbound.answer_folder import MAX_PENDING
from geartrain.service import shared_memory as regions
from geartrain.service.durable.history import MAX_RECORDED, MAX_UNWRITTEN
from geartrain.service.models.nested import MAX_EDGES
from geartrain.service.models.predictions import MAX_BYTES, MAX_RECENT
from geartrain.service.readers import DEFAULT_BACKLOG
from geartrain.service.scheduling.answers import MAX_SHARING
from geartrain.service.scheduling.context import DEFAULT_MAX_OUTPUT
from geartrain.service.webhooks import Backlog
from geartrain.store import groups
from geartrain.transport import access_log
from geartrain.transport.access import tokens
from geartrain.transport.cog import routes
from geartrain.transport.cog.streams import MAX_READERS
from geartrain.transport.grpc import request_heads, streams
from geartrain.transport.http2 import headers
from geartrain.transport.mcp import kept
from geartrain.transport.openai import batch_lines, batch_runner, stored_batches, stored_files, stored_routes
from geartrain.transport.wire import heads, http2_connection
from geartrain.transport.wire.http2_output import MAX_HELD
from geartrain.transport.wire.limits import WireLimits
from geartrain.worker.loading.triton import values
from geartrain.worker.values import mapped
from geartrain.worker.values.outputs import MAX_TYPES

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/operations.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("### Memory that the server keeps")[2].partition("\n## ")[0]
ROWS = {f"{row[0]} |": row[1] for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", TABLE, re.MULTILINE)}
MIB = 1024**2
BOUNDS: dict[str, list[int | str]] = {
    "connections": [WireLimits().max_connections],
    "finished predictions of a model": [MAX_RECENT, f"{MAX_BYTES // MIB} MiB"],
    "files of MCP results": [kept.MOST_FILES],
    "answers of a model": [f"{DEFAULT_BYTES // MIB} MiB"],
    "answers that wait": [f"{MAX_PENDING // MIB} MiB"],
    "predictions that share a run": [MAX_SHARING],
    "outputs of a run": [f"{DEFAULT_MAX_OUTPUT // MIB} MiB"],
    "printed text of a prediction |": [f"{MAX_TEXT // MIB} Mi"],
    "printed text of a setup": [f"{MAX_TEXT // MIB} Mi"],
    "rows of a printed text": [screen.MAX_ROWS, f"{screen.MAX_HELD // 1024} Ki"],
    "events of a prediction": [DEFAULT_CAPACITY, f"{MAX_PRINTED // MIB} Mi"],
    "values that a run records": [scope.MAX_METRICS, f"{scope.MAX_METRICS_SIZE // MIB} MiB"],
    "readers of a prediction": [MAX_READERS],
    "events that a reader": [DEFAULT_BACKLOG, f"{MAX_PRINTED // MIB} Mi"],
    "requests of a gRPC stream": [streams.MAX_AT_ONCE, f"{streams.MAX_HELD // MIB} MiB"],
    "unread responses of a gRPC": [f"{streams.MAX_UNREAD // MIB} MiB", streams.FEWEST],
    "webhooks that wait": [Backlog().webhooks, f"{Backlog().bytes // MIB} MiB"],
    "printed text of a prediction that waits": [f"{MAX_UNWRITTEN // MIB} Mi"],
    "recorded values of a prediction that wait": [f"{MAX_RECORDED // MIB} MiB"],
    "operations that wait for a store": [groups.MAX_WAITING],
    "files of clients": [stored_files.MAX_FILES, str(stored_files.MAX_FILE)],
    "batches of clients": [stored_batches.MAX_OPEN],
    "batches that run": [batch_runner.MAX_RUNNING],
    "lines of batches": [batch_lines.MOST_AT_ONCE, batch_runner.WRITTEN_AT_ONCE],
    "ids of the lines": [batches.MAX_LINES],
    "requests of a batch of messages": [f"{stored_routes.MAX_REQUESTS // MIB} MiB", message_batches.MAX_REQUESTS],
    "content of a file": [f"{PIECE // MIB} MiB"],
    "lines of the access log": [access_log.MAX_WAITING],
    "records of the log": [background_logs.MAX_WAITING, f"{background_logs.MAX_CHARACTERS // MIB} Mi"],
    "bodies of requests": [],
    "memory in which bodies are received": [f"{memory.LIMIT // MIB} MiB"],
    "memory that a worker and the server share": [f"{memory.MAX_KEPT // MIB} MiB"],
    "regions of shared memory": [regions.MAX_REGIONS],
    "unread answers of an HTTP/1.1": [],
    "unread answers of an HTTP/2": [f"{MAX_HELD // MIB} MiB"],
    "heads of requests over HTTP/1.1": [heads.MAX_HEADS, heads.MAX_HEADS_WITHOUT_PATH],
    "heads of requests of an HTTP/2": [headers.MAX_BLOCKS, http2_connection.MAX_HEADS],
    "texts of infer requests": [infer_json.MAX_REMEMBERED],
    "heads of infer requests": [request_heads.MAX_HEADS, request_heads.MAX_HEADS],
    "tokens": [tokens.MAX_REMEMBERED],
    "metrics": [own_metrics.MAX_SERIES],
    "calls of other models by the code of a worker": [MOST],
    "memory of other workers": [memory.MOST_OTHERS],
    "outputs of other models that a worker": [mapped.MOST],
    "regions for the outputs of a slot": [payloads.MOST_FOR_OUTPUTS],
    "responses of a decoupled model": [values.MAX_UNREAD],
    "requests that wait for the next turn of a loop": [],
    "pieces of a stream that a loop": [joining.MOST_PIECES],
    "calls of other models that were": [MAX_CALLS, MAX_CALL_TEXT],
    "figures of calls of models": [MAX_EDGES],
    "types of outputs": [MAX_TYPES],
    "OpenAPI documents": [routes.MAX_PAGES],
}
MEASURED = {
    "connections": [
        "conformance/test_http_resources.py::test_a8_connections_are_limited",
        "conformance/test_http_resources.py::test_connections_that_come_and_go_are_not_counted_for_ever",
    ],
    "finished predictions of a model": [
        "server/test_kept.py::test_s4_recent_predictions_are_bounded",
        "server/test_kept.py::test_s4_recent_predictions_go_when_their_time_is_over",
        "unit/service/models/test_recent.py::test_the_oldest_goes_when_there_are_too_many",
        "unit/service/models/test_recent.py::test_s4_error_of_a_failed_run_is_counted",
    ],
    "files of MCP results": [
        "unit/transport/mcp/test_kept.py::test_files_go_with_their_predictions",
        "unit/transport/mcp/test_kept.py::test_never_more_files_than_the_bound",
    ],
    "answers of a model": [
        "server/test_cache.py::test_answers_asked_for_longest_ago_make_room",
        "server/test_cache.py::test_the_server_s_memory_at_the_bound_and_after_the_end_of_a_cache",
        "unit/service/models/test_answers.py::test_memory_is_bounded",
    ],
    "answers that wait": [
        "unit/outbound/test_answer_folder.py::test_writes_that_wait_are_bounded",
        "unit/outbound/test_answer_folder.py::test_the_folder_is_bounded",
    ],
    "predictions that share a run": [
        "unit/service/models/test_answers.py::test_predictions_that_share_a_run_are_bounded",
    ],
    "outputs of a run": [
        "server/test_kept.py::test_s10_a_stream_that_is_too_large_fails",
        "server/test_kept.py::test_s10_the_default_bounds_the_output_of_a_run",
    ],
    "printed text of a prediction |": [
        "server/test_kept.py::test_s4_recent_predictions_are_bounded",
        "unit/domain/printed/test_printed.py::test_s4_the_oldest_of_a_long_text_is_left_out",
    ],
    "printed text of a setup": [
        "unit/domain/printed/test_printed.py::test_s4_the_oldest_of_a_long_text_is_left_out",
    ],
    "rows of a printed text": [
        "unit/domain/printed/test_printed.py::test_rows_that_can_be_overwritten_are_bounded",
        "unit/domain/printed/test_printed.py::test_rows_take_little_memory",
        "unit/domain/printed/test_printed.py::test_rows_of_a_screen_are_packed_and_counted",
    ],
    "events of a prediction": [
        "server/test_kept.py::test_events_of_prints_are_bounded",
        "unit/domain/predictions/test_prediction.py::test_events_of_much_printed_text_are_dropped",
        "unit/domain/predictions/test_prediction.py::test_events_of_large_metrics_are_dropped",
    ],
    "values that a run records": [
        "server/test_kept.py::test_metrics_that_a_run_records_are_bounded",
        "unit/authoring/test_scope.py::test_names_of_metrics_are_bounded",
        "unit/authoring/test_scope.py::test_values_of_metrics_are_bounded",
    ],
    "readers of a prediction": ["conformance/test_sse_readers.py::test_there_is_a_limit_to_readers"],
    "events that a reader": [
        "server/test_kept.py::test_events_of_prints_are_bounded",
        "conformance/test_sse_readers.py::test_slow_reader_stalls_nobody_and_is_sent_away",
    ],
    "requests of a gRPC stream": ["unit/transport/grpc/test_streams.py::test_no_more_run_than_there_is_place_for"],
    "unread responses of a gRPC": [
        "server/test_kept.py::test_unread_responses_of_a_stream_of_grpc_are_bounded",
    ],
    "webhooks that wait": [
        "server/test_kept.py::test_webhooks_that_wait_are_bounded",
        "unit/outbound/test_webhooks.py::test_longest_waiting_is_given_up_when_too_much_waits",
    ],
    "printed text of a prediction that waits": [
        "unit/service/durable/test_runs.py::test_oldest_prints_are_dropped_while_the_store_is_away"
    ],
    "recorded values of a prediction that wait": [
        "unit/service/durable/test_runs.py::test_recorded_values_are_folded_while_the_store_is_away",
        "unit/service/durable/test_runs.py::test_folded_values_take_the_place_of_those_that_were_written",
    ],
    "operations that wait for a store": [
        "unit/store/test_groups.py::test_no_more_wait_than_there_is_room_for",
        "unit/store/test_groups.py::test_operation_is_let_go_of_when_its_caller_has_an_answer",
    ],
    "files of clients": [
        "contract/test_batches.py::test_files_of_a_principal_are_limited",
        "contract/test_batches.py::test_file_that_has_expired_is_gone",
        "server/test_openai_files.py::test_files_of_a_key_are_limited",
    ],
    "batches of clients": [
        "server/test_openai_batches.py::test_batches_of_a_key_are_limited",
        "contract/test_batches.py::test_old_batch_goes_after_its_files",
    ],
    "batches that run": ["server/test_openai_batches.py::test_batches_that_run_at_once_are_few"],
    "lines of batches": [
        "server/test_openai_batches.py::test_lines_share_batches_of_the_model_and_few_are_asked_at_once"
    ],
    "ids of the lines": ["server/test_openai_batches.py::test_too_many_lines_fail_the_batch"],
    "requests of a batch of messages": [
        "server/test_anthropic_batches.py::test_largest_body_is_64_mib",
        "server/test_anthropic_batches.py::test_requests_are_read_in_little_memory",
    ],
    "content of a file": ["server/test_openai_files.py::test_large_file_goes_through_little_memory"],
    "lines of the access log": [
        "unit/transport/test_access_log.py::test_what_a_slow_reader_does_not_take_is_dropped_and_counted",
        "unit/transport/test_access_log.py::test_long_names_are_cut",
    ],
    "records of the log": [
        "unit/cli/test_background_logs.py::test_what_is_too_much_is_dropped_and_counted",
        "unit/cli/test_background_logs.py::test_long_records_are_dropped_before_there_are_many",
        "unit/cli/test_background_logs.py::test_room_for_long_records_is_had_again",
    ],
    "bodies of requests": [
        "conformance/test_http_resources.py::test_bodies_that_are_too_much_together",
        "conformance/test_http_resources.py::test_buffers_are_given_back",
    ],
    "memory in which bodies are received": [
        "server/test_large_tensors.py::test_many_large_bodies_at_once_are_bounded",
        "unit/ipc/test_body_memory.py::test_it_grows_and_gives_back_what_is_not_used",
    ],
    "memory that a worker and the server share": [
        "contract/test_tensors.py::test_slots_keep_little_memory_between_calls",
    ],
    "regions of shared memory": ["unit/service/test_shared_memory.py::test_regions_are_limited"],
    "unread answers of an HTTP/1.1": [
        "conformance/test_http_resources.py::test_a2_memory_is_bounded",
        "conformance/test_http_resources.py::test_who_reads_again_gets_all_answers",
    ],
    "unread answers of an HTTP/2": [
        "conformance/test_http2_floods.py::test_unread_answers_are_bounded",
        "conformance/test_http2_floods.py::test_s15_what_runs_counts_with_the_unread_answers",
    ],
    "heads of requests over HTTP/1.1": [
        "server/test_kept.py::test_heads_that_are_recognized_are_bounded",
        "unit/transport/wire/test_head_cache.py::test_their_number_is_bounded",
        "unit/transport/wire/test_head_cache.py::test_only_so_many_parsed_heads_are_kept",
    ],
    "heads of requests of an HTTP/2": [
        "unit/transport/http2/test_headers.py::test_few_blocks_are_remembered_and_no_large_ones",
        "unit/transport/http2/test_headers.py::test_short_block_of_large_fields_is_not_remembered",
        "unit/transport/http2/test_connection.py::test_memory_of_a_long_connection_is_bounded",
    ],
    "texts of infer requests": ["unit/apis/test_infer_repeats.py::test_only_so_many_are_remembered"],
    "heads of infer requests": [
        "unit/transport/grpc/test_message_heads.py::test_heads_that_are_remembered_are_few",
    ],
    "tokens": [
        "unit/transport/access/test_tokens.py::test_few_tokens_are_remembered",
        "unit/transport/access/test_tokens.py::test_known_token_is_not_verified_again_until_it_expires_or_is_forgotten",
    ],
    "metrics": [
        "unit/authoring/test_metrics.py::test_series_are_bounded_with_one_warning",
        "unit/authoring/test_metrics.py::test_metrics_are_bounded_with_the_same_warning",
        "unit/service/test_own_metrics.py::test_metrics_are_bounded",
        "unit/service/test_own_metrics.py::test_too_many_series_are_warned_of_once",
    ],
    "calls of other models by the code of a worker": [
        "unit/bridge/test_model_calls.py::test_calls_that_run_at_once_are_bounded"
    ],
    "memory of other workers": ["unit/ipc/test_other_regions.py::test_few_regions_stay_open"],
    "outputs of other models that a worker": [
        "unit/worker/values/test_mapped.py::test_mappings_are_few_and_leave_nothing_behind",
        "server/test_nested.py::test_outputs_that_are_never_read_are_let_go_of",
    ],
    "regions for the outputs of a slot": [
        "unit/bridge/test_lent_outputs.py::test_memory_grows_where_other_models_hold_outputs"
    ],
    "responses of a decoupled model": [
        "unit/worker/loading/triton/test_values.py::test_responses_that_wait_are_bounded",
        "unit/worker/loading/triton/test_values.py::test_a_sender_does_not_wait_for_a_reader_that_has_gone",
    ],
    "requests that wait for the next turn of a loop": [
        "unit/worker/loading/test_joint_signature.py::test_requests_that_leave_during_a_long_turn_are_not_kept",
    ],
    "pieces of a stream that a loop": [
        "unit/worker/loading/test_joint_signature.py::test_a_stream_that_nobody_reads_holds_the_loop_at_a_bound",
    ],
    "calls of other models that were": [
        "server/test_nested_calls.py::test_calls_beyond_the_bound_are_counted",
        "unit/domain/predictions/test_call_records.py::test_memory_of_calls_is_counted_with_the_prediction",
        "unit/service/durable/test_history.py::test_calls_take_no_more_than_a_few_megabytes_of_a_store",
        "server/test_stored_calls.py::test_calls_are_told_after_a_restart_for_as_long_as_the_prediction_is_kept",
    ],
    "figures of calls of models": ["unit/service/models/test_nested.py::test_figures_of_pairs_are_bounded"],
    "types of outputs": ["unit/worker/values/test_outputs.py::test_types_of_outputs_are_let_go_of"],
    "OpenAPI documents": ["unit/transport/cog/test_routes.py::test_pages_that_are_remembered_are_bounded"],
}


@pytest.mark.parametrize("beginning", BOUNDS)
def test_bounds_are_those_of_the_page(beginning: str) -> None:
    (shown,) = (bound for row, bound in ROWS.items() if row.startswith(beginning))
    assert {*re.findall(r"\d+(?: [KM]i\w*)?", shown)} == {str(bound) for bound in BOUNDS[beginning]}


def test_every_row_is_measured_by_tests_that_there_are() -> None:
    assert list(BOUNDS) == list(MEASURED)
    rows = [row for row in ROWS if row != "Kept |"]
    assert len(rows) == len(BOUNDS)
    assert all(row.startswith(beginning) for row, beginning in zip(rows, BOUNDS, strict=True))
    missing = [
        test
        for file, _, name in (test.partition("::") for tests in MEASURED.values() for test in tests)
        if f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8")
        for test in (f"{file}::{name}",)
    ]
    assert missing == []
