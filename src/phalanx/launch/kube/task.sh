# TF_CONFIG: this pod from its role and index, the others' addresses from the job's shape.
role=$PHALANX_ROLE index=$JOB_COMPLETION_INDEX cluster=''
for part in $(echo "$PHALANX_SHAPE" | tr ',' ' '); do
    kind=${part%=*} hosts='' number=0
    while [ "$number" -lt "${part#*=}" ]; do
        host=$PHALANX_SERVICE-$kind$between$number.$PHALANX_SERVICE
        hosts="$hosts${hosts:+,}$host:$PHALANX_PORT"
        number=$((number + 1))
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
        --host="$PHALANX_SERVICE-$role$between$index.$PHALANX_SERVICE" --port="$PHALANX_PORT" ;;
esac
TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}$model_dir}"
# The kernel takes no variable of 128 KiB; phalanx.detect() then finds out by itself.
if [ ${#TF_CONFIG} -lt 131000 ]; then export TF_CONFIG; fi
