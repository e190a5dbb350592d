"""Server reflection, from which tools like grpcurl learn the services. Imported at the first request."""

from __future__ import annotations

from typing import Any, Final

import grpc

from geartrain.transport.grpc.servicer import SERVICE

# The later one has the messages of the earlier one under another name.
REFLECTION_SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

_METHODS: Final = frozenset(f"/{service}/ServerReflectionInfo" for service in REFLECTION_SERVICES)


class LateReflection(grpc.GenericRpcHandler):
    """Finds the handler of the reflection service."""

    def __init__(self) -> None:
        self._handler: grpc.RpcMethodHandler[Any, Any] | None = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method not in _METHODS:
            return None
        if self._handler is None:
            self._handler = _make_handler()
        return self._handler


def _make_handler() -> grpc.RpcMethodHandler[Any, Any]:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_health.v1 import health_pb2
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    from geartrain.transport.grpc import open_inference_pb2
    from geartrain.transport.grpc.health import HEALTH_SERVICE

    pool = DescriptorPool()  # all of them in one pool: geartrain's own messages have another
    for module in (open_inference_pb2, health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(service_names=names, pool=pool)
    return grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
