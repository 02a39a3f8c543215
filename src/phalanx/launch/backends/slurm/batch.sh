# Runs on the node of each task: sets TF_CONFIG, and starts the program again by the rules of
# launch/processes/restarts.py, as far as a script can know what they ask for. Slurm signals the
# program itself; the trap only prevents a restart.
run_task() {
    local ending='' restarted=0 counted=0 free=0 began code why start=run_program
    local state=$log_dir/$role-$SLURM_PROCID.state log=$log_dir/$role-$SLURM_PROCID.log
    export index=$SLURM_PROCID
    case $role in
        dispatcher | data-worker) start=run_data_service ;;
        *) export TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}$model_dir}" ;;
    esac
    trap 'ending=yes' TERM INT
    while true; do
        echo "running $restarted" > "$state"
        began=$SECONDS
        $start
        code=$?
        [ $((SECONDS - began)) -lt 3600 ] || counted=0 free=0
        if [ "$code" = 0 ]; then
            echo "done $restarted 0" > "$state"
        elif [ -n "$ending" ]; then
            echo "ended $restarted $code" > "$state"
            # With any other code Slurm would kill the other tasks of the role, which may be saving.
            return 0
        elif [ "$code" = 2 ] || [ "$restarts" = 0 ]; then
            echo "failed $restarted $code" > "$state"
        elif [ "$free" -lt 100 ] && why=$(explain_free_restart "$code" "$log"); then
            free=$((free + 1)) restarted=$((restarted + 1))
            echo "phalanx: $role-$index $why: it is started again"
            continue
        elif [ "$counted" -lt "$restarts" ]; then
            counted=$((counted + 1)) restarted=$((restarted + 1))
            echo "phalanx: $role-$index failed with exit code $code: restart $counted of $restarts"
            # At once the first time, later after 1, 2, 4 and at most 60 s. A trap ends the pause.
            if [ "$counted" -gt 1 ]; then
                sleep $((counted > 7 ? 60 : 1 << (counted - 2))) &
                wait $!
                [ -z "$ending" ] || { echo "ended $restarted $code" > "$state"; return 0; }
            fi
            continue
        else
            echo "failed $restarted $code" > "$state"
        fi
        return "$code"
    done
}

# Says why an exit is no failure of the task; fails if it is one.
explain_free_restart() {
    case $1 in
        75) echo 'was preempted and has saved' ;;
        143) echo 'was preempted' ;;
        # The output of a step reaches its file a little later.
        *) sleep 1; tail -n 20 "$2" | grep -q '^phalanx: a peer stopped responding' &&
            echo 'has lost another task' ;;
    esac
}

# Runs a dispatcher or a data worker, which are not in TF_CONFIG.
run_data_service() {
    local address=$PHALANX_DATA_SERVICE service
    [ "$role" = dispatcher ] || address=$(cut -d, -f$((index + 1)) <<< "$data_hosts")
    service=("$python" -m phalanx guard --host="${address%:*}" --peers="$peers" -- "$python" -m phalanx data-service)
    if [ "$role" = dispatcher ]; then
        with_environment "${service[@]}" dispatcher --port="${address##*:}"
    else
        with_environment "${service[@]}" worker "$PHALANX_DATA_SERVICE" \
            --host="${address%:*}" --port="${address##*:}"
    fi
}

# Prints a node for each task: `n[1-2],m` and `2(x2),1` mean two tasks on n1 and n2, and one on m.
list_task_nodes() {
    local counts node number=0
    counts=($(sed -E 's/\(x([0-9]+)\)/x\1/g; s/,/ /g' <<< "$2" | tr ' ' '\n' |
        awk -Fx '{ for (i = 0; i < ($2 ? $2 : 1); i++) print $1 }'))
    for node in $(scontrol show hostnames "$1"); do
        for ((task = 0; task < counts[number]; task++)); do echo "$node"; done
        number=$((number + 1))
    done
}

# Assigns a node to each task and, if it listens, the next port of the node. Sets `nodes` and `hosts`.
assign_nodes() {
    local available=() next=0 group=0 role number node
    declare -gA nodes hosts used
    port=${PHALANX_PORT:-$((10000 + SLURM_JOB_ID % 340 * 64))}
    [ -n "$heterogeneous" ] || available=($(list_task_nodes "$SLURM_JOB_NODELIST" "$SLURM_TASKS_PER_NODE"))
    for role in "${roles[@]}"; do
        if [ -n "$heterogeneous" ]; then
            local nodelist=SLURM_JOB_NODELIST_HET_GROUP_$group
            local per_node=SLURM_TASKS_PER_NODE_HET_GROUP_$group
            available=($(list_task_nodes "${!nodelist}" "${!per_node}"))
            next=0 group=$((group + 1))
        fi
        if [ $((next + ${count[$role]})) -gt ${#available[@]} ]; then
            finish 2 "the allocation has room for ${#available[@]} tasks, which is too few"
        fi
        for ((number = 0; number < ${count[$role]}; number++)); do
            node=${available[next]}
            nodes[$role]+="${nodes[$role]:+ }$node"
            next=$((next + 1))
            [ "$role" = evaluator ] && continue
            hosts[$role]+="${hosts[$role]:+,}$node:$((port + ${used[$node]:-0}))"
            used[$node]=$((${used[$node]:-0} + 1))
        done
    done
    export chief_host=${hosts[chief]:-} worker_hosts=${hosts[worker]:-} ps_hosts=${hosts[ps]:-}
    [ -z "${hosts[dispatcher]:-}" ] || export PHALANX_DATA_SERVICE=${hosts[dispatcher]}
    export data_hosts=${hosts[data-worker]:-} cluster= peers
    peers=$(tr ' ' ',' <<< "${nodes[*]}")
    for role in chief worker ps; do
        [ -n "${hosts[$role]:-}" ] || continue
        cluster+="${cluster:+, }\"$role\": [\"${hosts[$role]//,/\", \"}\"]"
    done
    # Linux does not accept a longer variable.
    [ ${#cluster} -lt 130000 ] || finish 2 "TF_CONFIG of so many tasks is longer than 128 KiB"
}

# Starts one step for all tasks of a role, each on its assigned node.
start_role() {
    local chosen=() hostfile
    [ -z "$heterogeneous" ] || chosen=(--het-group="$2")
    hostfile=$log_dir/$1.hosts
    tr ' ' '\n' <<< "${nodes[$1]}" > "$hostfile"
    role=$1 SLURM_HOSTFILE=$hostfile srun "${chosen[@]}" --ntasks="${count[$1]}" \
        --job-name="$1" --distribution=arbitrary --exact --mem=0 ${cpus[$1]:+--cpus-per-task=${cpus[$1]}} \
        ${gpus[$1]:+--gpus-per-task=${gpus[$1]}} --kill-on-bad-exit=1 --open-mode=append \
        --output="${log_dir//%/%%}/$1-%t.log" bash -c run_task &
    steps[$1]=$!
}

is_running() { [ -n "${steps[$1]:-}" ] && kill -0 "${steps[$1]}" 2> /dev/null; }

# Waits for these roles for some seconds, then ends them and waits for the grace period.
end_roles() {
    local seconds=$1 role until
    shift
    for ((until = SECONDS + seconds; SECONDS < until; )); do
        any_running "$@" || return 0
        sleep 0.5
    done
    for role in "$@"; do is_running "$role" && signal_role "$role"; done
    for ((until = SECONDS + grace; SECONDS < until; )); do
        any_running "$@" || return 0
        sleep 0.5
    done
}

# Signals the tasks through scancel, because srun would kill them at once.
signal_role() {
    local jobs=$SLURM_JOB_ID variable
    # Each component of a heterogeneous job has a job id of its own.
    for variable in ${!SLURM_JOB_ID_HET_GROUP_@}; do jobs+=,${!variable}; done
    squeue --noheader --steps --jobs="$jobs" --format='%i %j' |
        awk -v role="$1" '$2 == role { print $1 }' | xargs --no-run-if-empty scancel --signal=TERM
}

any_running() {
    local role
    for role in "$@"; do is_running "$role" && return 0; done
    return 1
}

# Sets `states` to the files in which the tasks of a role record their state.
list_states() {
    local number
    states=()
    for ((number = 0; number < ${count[$1]}; number++)); do states+=("$log_dir/$1-$number.state"); done
}

finish() {
    echo "$1 $2" > "$log_dir/result"
    echo "phalanx: $2"
    exit "$1"
}

# Handles SIGTERM, sent by a user, by preemption or before the time limit: the ps end last.
end_early() {
    trap '' TERM
    end_roles 0 chief worker evaluator
    end_roles 0 ps dispatcher data-worker
    if [ -n "$requeue" ] && [ ! -e "$log_dir/cancelled" ]; then
        echo "phalanx: ended by SIGTERM; the job is requeued"
        scontrol requeue "$SLURM_JOB_ID" && exit 0
    fi
    finish 143 "ended by SIGTERM"
}

main() {
    declare -A steps
    local role decisive=chief group=0 code states
    (umask 077 && mkdir -p "$log_dir")
    chmod 600 "$log_dir/batch.log" 2> /dev/null
    rm -f "$log_dir/result"
    for role in "${roles[@]}"; do
        list_states "$role" && rm -f "${states[@]}"
        # The output of the program may hold secrets.
        (umask 077 && touch "${states[@]/%.state/.log}")
    done
    [ -n "${count[chief]:-}" ] || decisive=worker
    assign_nodes
    # Authenticates the messages between the tasks. Slurm passes it to every step.
    PHALANX_SECRET=${PHALANX_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
    export PHALANX_SECRET
    export -f run_task explain_free_restart run_program run_data_service with_environment
    export log_dir restarts model_dir python
    trap end_early TERM
    for role in "${roles[@]}"; do
        start_role "$role" "$group"
        group=$((group + 1))
    done
    while true; do
        wait -n
        for role in "${roles[@]}"; do
            if [ -z "${steps[$role]:-}" ] || is_running "$role"; then continue; fi
            wait "${steps[$role]}"
            code=$?
            unset "steps[$role]"
            if [ "$code" != 0 ]; then
                end_roles 0 chief worker evaluator
                end_roles 0 ps dispatcher data-worker
                finish 1 "the step of the role $role failed with exit code $code"
            elif [ "$role" = "$decisive" ] && list_states "$role" && grep -qsv ^done "${states[@]}"; then
                end_early
            elif [ "$role" = "$decisive" ]; then
                end_roles "$linger" chief worker
                end_roles "$evaluator_linger" evaluator
                end_roles 0 ps dispatcher data-worker
                finish 0 succeeded
            fi
        done
    done
}

main
