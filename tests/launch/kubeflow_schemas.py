"""What the definitions of TFJob, TrainJob and TrainingRuntime allow, with nothing unknown.

They follow the published CRDs field by field. What is a pod or a Job inside of them is any object
here, and is checked against Kubernetes' own schema beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.launch.schema_words import one_of, several, table

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
POSITIVE = {"type": "integer", "minimum": 1}
ANY = {"type": "object"}
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
LABEL_NAME = {"type": "string", "maxLength": 63, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}


def kind(api: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"type": "object", "required": ["name"], "properties": {"name": LABEL_NAME}}
    return table(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api},
        kind={"const": name},
        metadata=metadata,
        spec=spec,
        status=ANY,
    )


REPLICA = table(
    replicas=COUNT,
    restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=ANY,
)
TFJOB = kind(
    "kubeflow.org/v1",
    "TFJob",
    table(
        ("tfReplicaSpecs",),
        enableDynamicWorker=FLAG,
        successPolicy=one_of("", "AllWorkers"),
        runPolicy=table(
            activeDeadlineSeconds=POSITIVE,
            backoffLimit=COUNT,
            cleanPodPolicy=one_of("All", "Running", "None"),
            managedBy=one_of("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"),
            schedulingPolicy=table(
                minAvailable=COUNT,
                minResources=ANY,
                priorityClass=TEXT,
                queue=TEXT,
                scheduleTimeoutSeconds=COUNT,
            ),
            suspend=FLAG,
            ttlSecondsAfterFinished=COUNT,
        ),
        tfReplicaSpecs=table(
            Chief=REPLICA, Master=REPLICA, Worker=REPLICA, PS=REPLICA, Evaluator=REPLICA
        ),
    ),
)

TRAINER_API = "trainer.kubeflow.org/v1alpha1"
TRAINJOB = kind(
    TRAINER_API,
    "TrainJob",
    table(
        ("runtimeRef",),
        runtimeRef=table(
            ("name",),
            name=NAME,
            apiGroup={"const": "trainer.kubeflow.org"},
            kind=one_of("TrainingRuntime", "ClusterTrainingRuntime"),
        ),
        initializer=table(dataset=ANY, model=ANY),
        trainer=table(
            image={"type": "string", "maxLength": 500},
            command=several(TEXT, maxItems=128),
            args=several(TEXT, maxItems=128),
            env=several(ANY, maxItems=128),
            numNodes=COUNT,
            resourcesPerNode=ANY,
            numProcPerNode=COUNT,
        ),
        runtimePatches=several(ANY, maxItems=16),
        suspend=FLAG,
        activeDeadlineSeconds=POSITIVE,
        managedBy=one_of("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"),
    ),
)

# What Kubeflow Trainer's server of statuses takes from a pod.
TRAINER_STATUS = table(
    ("trainerStatus",),
    trainerStatus=table(
        progressPercentage={"type": "integer", "minimum": 0, "maximum": 100},
        estimatedRemainingSeconds=COUNT,
        metrics=several(
            table(("name", "value"), name={**TEXT, "minLength": 1}, value={**TEXT, "minLength": 1})
        ),
        lastUpdatedTime={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
    ),
)

REPLICATED_JOB = table(
    ("name", "template"),
    name=LABEL_NAME,
    groupName=TEXT,
    # Trainer refuses any other number.
    replicas={"const": 1},
    template=table(("spec",), metadata=ANY, spec=ANY),
    dependsOn=several(table(("name", "status"), name=TEXT, status=one_of("Ready", "Complete"))),
)
JOBSET = table(
    replicatedJobs=several(REPLICATED_JOB),
    network=table(enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
    successPolicy=table(
        ("operator",), operator=one_of("All", "Any"), targetReplicatedJobs=several(TEXT)
    ),
    failurePolicy=table(
        maxRestarts=COUNT,
        restartStrategy=one_of("Recreate", "BlockingRecreate"),
        rules=several(ANY),
    ),
    startupPolicy=ANY,
    suspend=FLAG,
    coordinator=ANY,
    managedBy=TEXT,
    ttlSecondsAfterFinished=COUNT,
)
RUNTIME = kind(
    TRAINER_API,
    "TrainingRuntime",
    {
        **table(
            mlPolicy=table(numNodes=COUNT, torch=ANY, mpi=ANY),
            podGroupPolicy=table(coscheduling=ANY, volcano=ANY),
            template=table(metadata=ANY, spec=JOBSET),
        ),
        "minProperties": 1,
    },
)


def jobs_of(runtime: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Jobs that a JobSet would make, for Kubernetes' own schema."""
    for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        metadata = {**each["template"].get("metadata", {}), "name": f"x-{each['name']}-0"}
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        yield {**head, "spec": each["template"]["spec"]}
