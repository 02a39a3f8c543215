# Who this pod is, from its index and the job's shape, and every address, from the pods' names.
# With PHALANX_ROLE each role has a Job of its own, and so its own numbers.
place=0 cluster='' mine=${PHALANX_ROLE:+$PHALANX_ROLE-0-}$JOB_COMPLETION_INDEX
for part in $(echo "$PHALANX_SHAPE" | tr ',' ' '); do
    kind=${part%=*} hosts='' number=0
    while [ "$number" -lt "${part#*=}" ]; do
        name=$place
        if [ -n "$PHALANX_ROLE" ]; then name=$kind-0-$number; fi
        host=$PHALANX_SERVICE-$name.$PHALANX_SERVICE
        if [ "$name" = "$mine" ]; then role=$kind index=$number me=$host; fi
        hosts="$hosts${hosts:+,}$host:$PHALANX_PORT"
        place=$((place + 1)) number=$((number + 1))
    done
    case $kind in
        chief) chief_host=$hosts ;;
        worker) worker_hosts=$hosts ;;
        ps) ps_hosts=$hosts ;;
        dispatcher) export PHALANX_DATA_SERVICE="$hosts"; continue ;;
        *) continue ;;
    esac
    cluster="$cluster${cluster:+, }\"$kind\": [\"$(echo "$hosts" | sed 's/,/", "/g')\"]"
done
case $role in
    dispatcher) exec "$python" -m phalanx data-service dispatcher --port="$PHALANX_PORT" ;;
    data-worker) exec "$python" -m phalanx data-service worker "$PHALANX_DATA_SERVICE" \
        --host="$me" --port="$PHALANX_PORT" ;;
esac
TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}$model_dir}"
# The kernel takes no variable of 128 KiB; phalanx.detect() then finds out by itself.
if [ ${#TF_CONFIG} -lt 131000 ]; then export TF_CONFIG; fi
