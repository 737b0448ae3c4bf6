# Questions and reports to the server. Each has an end, and so have repetitions; the cause is left in $http_error.

# how long one answer may take, in seconds
ANSWER=20

# call URL FILE [OPTION]...: the answer's body into the file
call() {
    call_url=$1 call_file=$2
    shift 2
    timeout $ANSWER wget -q -O "$call_file" ${token:+--header} ${token:+"Authorization: Bearer $token"} "$@" "$call_url" \
        2>$RUN/call.error && return 0
    http_error=$(last_line $RUN/call.error)
    [ -n "$http_error" ] || http_error="no answer within $ANSWER seconds"
    return 1
}

# refused TEXT: whether the server said no, and would say so again
refused() {
    case $1 in
        *HTTP/1.?" 408"* | *HTTP/1.?" 429"*) return 1 ;;
        *HTTP/1.?" 4"*) return 0 ;;
    esac
    return 1
}

# persist COMMAND...: until it works, with growing pauses. Ends after $tries; after three times no already.
persist() {
    try=0 noes=0
    until "$@"; do
        try=$((try + 1))
        if refused "$http_error"; then noes=$((noes + 1)); fi
        if [ $noes -ge 3 ] || [ $try -ge "$tries" ]; then return 1; fi
        say "the server: $http_error; trying again"
        sleep $((try < 10 ? try : 10))
    done
}

# The log's lines that no report has carried yet; of very many the last.
LINES_AT_ONCE=100
reported=0

# report STATUS PROGRESS [MEMBERS]: to the server, with the log's new lines. Its answer is in $answer_applied (yes, no),
# $answer_state and $answer_reason.
report() {
    lines=$(wc -l <$RUN/log)
    {
        printf '{"mac_address":%s' "$(json_string "$mac")"
        [ -z "$1" ] || printf ',"installation_status":"%s"' "$1"
        [ -z "$2" ] || printf ',"installation_progress":%s' "$2"
        [ -z "$3" ] || printf ',%s' "$3"
        printf ',"log_lines":[%s]}' "$(tail -n +$((reported + 1)) $RUN/log | tail -n $LINES_AT_ONCE | json_lines)"
    } >$RUN/report.json
    call "$url/api/v1/report" $RUN/answer --header 'Content-Type: application/json' --post-file $RUN/report.json || return 1
    reported=$lines
    answer_applied=no
    if grep -q '"applied" *: *true' $RUN/answer; then answer_applied=yes; fi
    answer_state=$(json_text state <$RUN/answer | tr A-Z a-z)
    answer_reason=$(json_text reason <$RUN/answer)
}

# order_closed: whether the last answer says that there is nothing more to do here: so by its reason, or because the
# node is in a state in which nobody may touch its disks. An attempt that has ended has no disks either: another one may be
# under way by now.
order_closed() {
    case $answer_reason in ORDER_CLOSED | ATTEMPT_ENDED) return 0 ;; esac
    case $answer_state in
        install_failed | discovered | installed | active | retired) return 0 ;;
    esac
    return 1
}

stop() {
    stopped=yes
    failure=$1
    return 1
}

# report_started: nothing is touched before the server has heard it
report_started() {
    persist report started 0 || { fail "the server does not take the report that this begins: $http_error"; return 1; }
    if order_closed; then stop "the server has closed this order"; return 1; fi
}

# progress PERCENT: fails only where the work must stop. A server that is away for a while does not stop it; one that
# does not know us any more does.
report_noes=0
progress() {
    if report progress "$1"; then
        report_noes=0
        if order_closed; then stop "the server has closed this order"; return 1; fi
    elif refused "$http_error"; then
        report_noes=$((report_noes + 1))
        if [ $report_noes -ge 3 ]; then stop "the server refuses the reports: $http_error"; return 1; fi
    fi
    return 0
}

# report_complete MEMBERS STATE...: what is done is a success if the report of it counts, or if it has counted before and
# only the answer was lost: then the node is in one of these states
report_complete() {
    persist report complete 100 "$1" || { stop "it is done, but the server does not take the report: $http_error"; return 1; }
    [ $answer_applied = no ] || return 0
    shift
    for state in "$@"; do
        [ "$answer_state" != "$state" ] || return 0
    done
    stop "it is done, but for the server it does not count: $answer_reason (this machine is $answer_state)"
}

report_failure() {
    say "failed: $failure"
    members="\"installation_error\":$(json_string "$failure")"
    [ -z "$evidence" ] || members="$members,\"evidence\":$evidence"
    persist report failed "" "$members" || say "the server does not take the report of this failure: $http_error"
}
