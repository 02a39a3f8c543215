#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --output=/home/ann/logs/digits/batch.log
#SBATCH --open-mode=append
#SBATCH --chdir=/home/ann
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --time=90
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=2048M

roles=(chief worker ps)
declare -A count=([chief]=1 [worker]=2 [ps]=1) cpus=([chief]=2 [worker]=2 [ps]=2) gpus=()
heterogeneous=
log_dir=/home/ann/logs/digits
model_dir=', "model_dir": "/scratch/my digits"'
restarts=1 requeue=yes
grace=30 linger=10 evaluator_linger=600
export TF_ENABLE_ONEDNN_OPTS=1
export TF_CPP_MIN_LOG_LEVEL=1
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=2
export TF_NUM_INTRAOP_THREADS=2
export TF_NUM_INTEROP_THREADS=2
export PHALANX_RESTARTS=1

run_program() {
    with_environment sh -c 'if "$0" -P -c "import phalanx.guard" 2>/dev/null; then exec "$0" -P -m phalanx guard -- "$@"; fi
echo "phalanx: warning: without Phalanx in $0, this task has open ports (see SECURITY.md)" >&2
[ "$PHALANX_GUARD" != required ] || exit 2; exec "$@"' python3 python3 train.py --job="$role" --index "$index" 'it'"'"'s'
}

with_environment() (
    export SEED='1 2'
    exec "$@"
)

