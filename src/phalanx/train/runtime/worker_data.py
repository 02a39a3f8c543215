"""Worker data: a dataset that a worker builds in its own process because it cannot be sent.

With parameter servers, the chief sends what its workers run as a graph of TensorFlow operations. A
dataset that calls Python or holds large arrays cannot be sent that way. So each worker calls
`train_data` itself and serves the dataset, by the tf.data service, to the function that the chief
sends: from this process to this process. The address of the service is in a file that only this
process has, so that the function finds a restarted worker's data, too.
"""

import tempfile

import tensorflow as tf

from phalanx.train.runtime.descriptors import WORKER_DATA, duplicate_to, path_of
from phalanx.train.types import Dataset, ElementSpec, Server

_DATASET_ID = "train"

# Neither server can stop while functions read from it: they live as long as the process.
_SERVERS: list[Server] = []


def serve_worker_data(data: Dataset) -> None:
    """Serve a dataset to the functions that run in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    service.register_dataset(dispatcher.target, data, compression=None, dataset_id=_DATASET_ID)
    with tempfile.TemporaryFile() as file:
        file.write(address.encode())
        file.flush()
        duplicate_to(file.fileno(), WORKER_DATA)
    _SERVERS.extend([dispatcher, worker])


def read_worker_data(element_spec: ElementSpec) -> Dataset:
    """Return the dataset that the process that runs this operation serves."""
    flat = [
        (spec.dtype, spec.shape) if isinstance(spec, tf.TensorSpec) else (tf.variant, None)
        for spec in tf.nest.flatten(element_spec)
    ]
    identity = tf.function(lambda element: element).get_concrete_function(
        tf.TensorSpec([], tf.variant)
    )
    variant = tf.raw_ops.DataServiceDatasetV4(
        dataset_id=_DATASET_ID,
        processing_mode="",  # Without sharding.
        address=tf.io.read_file(path_of(WORKER_DATA)),
        protocol="grpc",
        job_name="",
        consumer_index=-1,
        num_consumers=-1,
        max_outstanding_requests=-1,
        iteration_counter=tf.raw_ops.DummyIterationCounter(),
        output_types=[dtype for dtype, _ in flat],
        output_shapes=[tf.TensorShape(shape) for _, shape in flat],
        uncompress=False,
        uncompress_fn=identity,
    )
    return tf.data.experimental.from_variant(variant, element_spec)
