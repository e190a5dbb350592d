"""Tensors, requests and responses of Triton's Python backend, without a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import pytest

from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import Scope
from geartrain.domain.errors import Code
from geartrain.worker.errors import code_of, describe_error
from geartrain.worker.loading.triton import utils
from geartrain.worker.loading.triton.config import ModelConfig, declared, whole_config
from geartrain.worker.loading.triton.values import (
    MAX_UNREAD,
    InferenceRequest,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
    error_of,
)

torch = pytest.importorskip("torch")


def request(**more: object) -> InferenceRequest:
    tensors = Tensors({"x": np.ones(2, np.float32)}, parameters=more, id="own")
    return InferenceRequest(tensors, ("y",), Scope(), is_decoupled=True)


def test_tensors_share_memory_with_other_libraries() -> None:
    array = np.arange(4, dtype=np.int16)
    tensor = Tensor("x", array)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("x", [4], 7, True)
    there = torch.from_dlpack(tensor)
    there[0] = 9
    assert array[0] == 9
    back = Tensor.from_dlpack("y", torch.utils.dlpack.to_dlpack(there))
    assert back.as_numpy().tolist() == [9, 1, 2, 3]
    assert torch.utils.dlpack.from_dlpack(back.to_dlpack()).tolist() == [9, 1, 2, 3]
    half = Tensor.from_dlpack("z", torch.ones(2, dtype=torch.bfloat16))
    assert half.datatype == "BF16"
    with pytest.raises(TritonModelException, match="BF16"):
        half.as_numpy()
    with pytest.raises(TritonModelException, match="array of numpy"):
        Tensor("x", [1, 2])


def test_texts_have_a_datatype() -> None:
    for array in (np.array([b"a"], object), np.array(["a"]), np.array([b"a"])):
        assert Tensor("x", array).datatype == "BYTES"
    packed = utils.serialize_byte_tensor(np.array([b"ab", "c"], object))
    assert utils.deserialize_bytes_tensor(packed.item()).tolist() == [b"ab", b"c"]


def test_types_of_numpy_and_triton() -> None:
    assert utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert utils.triton_to_numpy_type(11) is np.float32
    assert [utils.numpy_to_triton_type(kind) for kind in (np.float32, np.bool_, np.object_, np.str_)] == [11, 1, 13, 13]
    with pytest.raises(TritonModelException, match="complex"):
        utils.numpy_to_triton_type(np.complex64)


def test_a_request_tells_what_its_client_has_sent() -> None:
    found = request(sequence_id=3, sequence_end=True, own=1.5)
    assert (found.request_id(), found.correlation_id(), found.flags()) == ("own", 3, 2)
    assert json.loads(found.parameters()) == {"own": 1.5}
    assert found.requested_output_names() == ["y"]
    assert utils.get_input_tensor_by_name(found, "none") is None
    assert found.trace().get_context() is None


@pytest.mark.parametrize(
    ("code", "ours"), [(TritonError.INTERNAL, None), (TritonError.NOT_FOUND, Code.NOT_FOUND), (99, None)]
)
def test_an_error_of_a_response_has_its_message_and_its_code(code: int, ours: Code | None) -> None:
    error = error_of(TritonError("no luck", code))
    assert (describe_error(error), code_of(error)) == ("no luck", ours)


def test_responses_that_wait_are_bounded() -> None:
    asked = request()
    sender = asked.get_response_sender()
    with pytest.raises(TritonModelException, match="given its sender away"):
        asked.get_response_sender()
    responses = asked.responses
    assert responses is not None
    for _ in range(MAX_UNREAD):
        sender.send(InferenceResponse())
    more = threading.Thread(target=sender.send, args=(InferenceResponse(error="late"), 1))
    more.start()
    for _ in range(MAX_UNREAD):
        assert isinstance(responses.get(), InferenceResponse)
    last = responses.get()
    more.join()
    assert isinstance(last, InferenceResponse)
    assert last.has_error()
    assert responses.get() is None
    with pytest.raises(TritonModelException, match="closed"):
        sender.send(InferenceResponse())


def test_a_sender_does_not_wait_for_a_reader_that_has_gone() -> None:
    asked = request()
    sender = asked.get_response_sender()
    assert asked.responses is not None
    asked.responses.drop()
    for _ in range(2 * MAX_UNREAD):
        sender.send(InferenceResponse())


def test_a_sender_that_is_let_go_ends_the_responses() -> None:
    asked = request()
    sender = asked.get_response_sender()
    del sender
    assert asked.responses is not None
    assert asked.responses.get() is None


def test_a_configuration_is_completed_and_contradictions_are_told() -> None:
    stated = {"input": [{"name": "x", "data_type": "TYPE_STRING", "dims": [1]}], "max_batch_size": 8}
    config = ModelConfig(whole_config(stated, "m"))
    config.add_input({"name": "x", "data_type": "TYPE_STRING", "dims": [1], "optional": True})
    config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
    config.set_model_transaction_policy({"decoupled": True})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    found = config.as_dict()
    (x,) = declared(found, "input")
    assert (x.datatype, x.shape, x.optional) == ("BYTES", (-1, 1), True)
    assert [each.shape for each in declared(found, "output")] == [(-1, -1)]
    assert (found["dynamic_batching"], utils.using_decoupled_model_transaction_policy(found)) == ({}, True)
    changes: list[Callable[[], object]] = [
        lambda: config.set_max_batch_size(4),
        lambda: config.set_model_transaction_policy({"decoupled": False}),
        lambda: config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]}),
        lambda: config.add_output({"name": "z", "dims": [1]}),
        lambda: config.add_output({"name": "z", "data_type": "TYPE_FP32", "dims": [1], "shape": [1]}),
    ]
    for change in changes:
        with pytest.raises(ValueError, match=r"m|property"):
            change()


def test_missing_names_are_told_with_what_there_is() -> None:
    utils.install()
    import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # made by `install`

    with pytest.raises(AttributeError, match="loaded by the operator"):
        _ = pb_utils.load_model
    with pytest.raises(AttributeError, match="InferenceRequest"):
        _ = pb_utils.unknown
