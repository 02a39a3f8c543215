"""What Marathon 1.5 to 1.11 accept at /v2/groups, from its published API, with nothing unknown."""

from __future__ import annotations

from tests.launch.schema_words import one_of, several, table

TEXT = {"type": "string"}
WORDS = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
AMOUNT = {"type": "number", "minimum": 0}
FLAG = {"type": "boolean"}
PORT = {"type": "integer", "minimum": 0, "maximum": 65535}
PATH = {
    "type": "string",
    "pattern": r"^/?((([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])[./])*"
    r"([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9]))$",
}
TEXTS = {"type": "object", "additionalProperties": TEXT}


HEALTH_CHECK = table(
    protocol=one_of("HTTP", "HTTPS", "TCP", "COMMAND", "MESOS_TCP", "MESOS_HTTP", "MESOS_HTTPS"),
    command=table(("value",), value=WORDS),
    path=TEXT,
    port=PORT,
    portIndex=COUNT,
    delaySeconds=COUNT,
    gracePeriodSeconds=COUNT,
    intervalSeconds=COUNT,
    timeoutSeconds=COUNT,
    maxConsecutiveFailures=COUNT,
    ignoreHttp1xx=FLAG,
    ipProtocol=one_of("IPv4", "IPv6"),
)
CONTAINER = table(
    type=one_of("MESOS", "DOCKER"),
    docker=table(
        ("image",),
        image=WORDS,
        forcePullImage=FLAG,
        privileged=FLAG,
        parameters=several(table(("key", "value"), key=WORDS, value=TEXT)),
    ),
    volumes=several(
        table(
            ("containerPath", "hostPath", "mode"),
            containerPath=WORDS,
            hostPath=WORDS,
            mode=one_of("RO", "RW"),
        )
    ),
    portMappings=several({"type": "object"}),
)
OPERATORS = one_of("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS")
CONSTRAINT = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "prefixItems": [TEXT, OPERATORS, TEXT],
}
APP = table(
    ("id",),
    id=PATH,
    acceptedResourceRoles=several(TEXT, uniqueItems=True),
    args=several(TEXT),
    backoffFactor={"type": "number", "minimum": 1},
    backoffSeconds=COUNT,
    cmd=WORDS,
    constraints=several(CONSTRAINT, uniqueItems=True),
    container=CONTAINER,
    cpus={"type": "number", "minimum": 0.001},
    dependencies=several(PATH, uniqueItems=True),
    disk=AMOUNT,
    env=TEXTS,
    fetch=several(table(("uri",), uri=WORDS, executable=FLAG, extract=FLAG, cache=FLAG)),
    gpus=COUNT,
    healthChecks=several(HEALTH_CHECK, uniqueItems=True),
    instances=COUNT,
    killSelection=one_of("YOUNGEST_FIRST", "OLDEST_FIRST"),
    labels=TEXTS,
    maxLaunchDelaySeconds=COUNT,
    mem=AMOUNT,
    networks=several(
        table(mode=one_of("container", "container/bridge", "host"), name=TEXT, labels=TEXTS)
    ),
    portDefinitions=several(
        table(port=PORT, protocol=one_of("tcp", "udp", "udp,tcp"), name=TEXT, labels=TEXTS)
    ),
    requirePorts=FLAG,
    taskKillGracePeriodSeconds=COUNT,
    upgradeStrategy=table(maximumOverCapacity=AMOUNT, minimumHealthCapacity=AMOUNT),
    user=TEXT,
)
# Either a shell's command or arguments, never both.
ONE_COMMAND = {"oneOf": [{"required": ["cmd"]}, {"required": ["args"]}]}
GROUP = table(
    ("id",), id=PATH, apps=several({"allOf": [APP, ONE_COMMAND]}), dependencies=several(PATH)
)
