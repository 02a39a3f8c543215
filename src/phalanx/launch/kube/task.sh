# TF_CONFIG: this pod from its role and index, the others' addresses from the job's shape.
role=$PHALANX_ROLE index=$JOB_COMPLETION_INDEX cluster='' peers=''
for part in $(echo "$PHALANX_SHAPE" | tr ',' ' '); do
    kind=${part%=*} hosts='' number=0
    while [ "$number" -lt "${part#*=}" ]; do
        host=$name-$kind$between$number.$PHALANX_SERVICE
        hosts="$hosts${hosts:+,}$host:$PHALANX_PORT"
        peers="$peers${peers:+,}$host"
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
host=$name-$role$between$index.$PHALANX_SERVICE
[ ${#peers} -lt 120000 ] || peers='*'
case $role in
    dispatcher | data-worker) set -- "$python" -m phalanx guard --host="$host" --peers="$peers" -- \
        "$python" -m phalanx data-service ;;
esac
case $role in
    dispatcher) exec "$@" dispatcher --port="$PHALANX_PORT" ;;
    data-worker) exec "$@" worker "$PHALANX_DATA_SERVICE" --host="$host" --port="$PHALANX_PORT" ;;
esac
TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}$model_dir}"
# The kernel takes no variable of 128 KiB; phalanx.detect() then finds out by itself.
if [ ${#TF_CONFIG} -lt 131000 ]; then export TF_CONFIG; fi
