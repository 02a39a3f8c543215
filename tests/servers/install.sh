#!/bin/sh
# install.sh: install the servers that the slow tests start, with Debian's apt, as root.
# The tests that need what is missing are skipped, and `make test-all` says why.
set -eu

# A command, and the package that has it.
needed="
    cc:gcc
    containerd:containerd
    dockerd:docker.io
    docker:docker-cli
    docker-compose:docker-compose
    ip:iproute2
    javac:default-jdk-headless
    munged:munge
    slurmctld:slurmctld
    slurmd:slurmd
    sbatch:slurm-client
    ssh:openssh-client
    sshd:openssh-server
    openssl:openssl
    chromium:chromium
    prometheus:prometheus
"

PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in $needed; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
# The native codec needs Python's headers.
if ! "${PYTHON:-python3}" -c 'import sysconfig, pathlib, sys
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
    missing="$missing python3-dev"
fi
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed:$missing. To install it, run as root on Debian: make test-all" >&2
    exit 0
fi

# The tests start servers of their own: those of the packages must not run.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
apt-get update --quiet=2 || true
# Before Debian 13, docker.io has the client, and docker-cli does not exist.
apt-cache show docker-cli >/dev/null 2>&1 || missing=$(echo "$missing" | sed 's/docker-cli/docker.io/')
echo "installing:$missing"
# shellcheck disable=SC2086
if ! DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $missing; then
    echo "apt-get cannot install:$missing. The tests that need it are skipped." >&2
    exit 0
fi
for service in docker docker.socket containerd munge slurmctld slurmd ssh prometheus; do
    case " $missing " in
    *" $(echo $service | sed 's/^docker.*/docker.io/; s/^ssh$/openssh-server/') "*)
        # Nor after the next boot.
        systemctl disable --quiet $service 2>/dev/null || true ;;
    esac
done
