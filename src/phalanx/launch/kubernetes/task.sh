# Who this pod is, from its index and the job's shape, and every address, from the pods' names.
place=0 cluster=''
for part in $(echo "$PHALANX_SHAPE" | tr ',' ' '); do
    kind=${part%=*} hosts='' number=0
    while [ "$number" -lt "${part#*=}" ]; do
        if [ "$place" = "$JOB_COMPLETION_INDEX" ]; then role=$kind index=$number; fi
        hosts="$hosts${hosts:+,}$PHALANX_SERVICE-$place.$PHALANX_SERVICE:$PHALANX_PORT"
        place=$((place + 1)) number=$((number + 1))
    done
    case $kind in
        chief) chief_host=$hosts ;;
        worker) worker_hosts=$hosts ;;
        ps) ps_hosts=$hosts ;;
        evaluator) continue ;;
    esac
    cluster="$cluster${cluster:+, }\"$kind\": [\"$(echo "$hosts" | sed 's/,/", "/g')\"]"
done
TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}$model_dir}"
# The kernel takes no variable of 128 KiB; phalanx.detect() then finds out by itself.
if [ ${#TF_CONFIG} -lt 131000 ]; then export TF_CONFIG; fi
