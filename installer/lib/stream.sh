# The bytes of an image, in order, over as many connections as it takes. busybox's wget cannot go on in the middle of
# something that it does not keep, so these requests are made by hand: plain HTTP, a range, one answer.

# how often the stream may be taken up again without a byte of progress, and in all
RESUMES_IN_A_ROW=12
RESUMES=200

# split_url URL: into $host, $port and $path
split_url() {
    authority=${1#http://}
    path=/
    case $authority in */*) path=/${authority#*/} authority=${authority%%/*} ;; esac
    host=${authority%%:*} port=80
    case $authority in *:*) port=${authority##*:} ;; esac
}

# take_answer OFFSET: reads the answer's head and says whether the bytes from there on follow, and how many there are in all
# in $RUN/stretch.total, as far as that is told; otherwise the cause is in $RUN/stretch.error, and where to ask instead in
# $RUN/stretch.moved
take_answer() {
    if ! IFS= read -r line; then
        # nc has said why
        [ -s $RUN/stretch.error ] || echo "the connection ended before an answer" >$RUN/stretch.error
        return 1
    fi
    answer=$(printf '%s' "$line" | tr -d '\r')
    plain=yes length= total=
    while IFS= read -r line; do
        header=$(printf '%s' "$line" | tr -d '\r')
        case $header in
            '') break ;;
            [Ll]ocation:*) printf '%s' "${header#*:}" | tr -d ' ' >$RUN/stretch.moved ;;
            [Tt]ransfer-[Ee]ncoding:*) plain=no ;;
            [Cc]ontent-[Ll]ength:*) length=$(printf '%s' "${header#*:}" | tr -d ' ') ;;
            [Cc]ontent-[Rr]ange:*) total=${header##*/} ;;
        esac
    done
    # a whole answer is as long as it says; a part says of what it is one
    case $answer in "HTTP/1."?" 200 "*) total=$length ;; esac
    number "$total" 0 >$RUN/stretch.total
    case "$answer offset $1 plain $plain" in
        "HTTP/1."?" 206 "*" plain yes" | "HTTP/1."?" 200 "*"offset 0 plain yes") return 0 ;;
        "HTTP/1."?" 200 "*) echo "the server does not give parts of the image, so it cannot be gone on with" ;;
        *) echo "server returned error: $answer" ;;
    esac >$RUN/stretch.error
    return 1
}

# stretch URL OFFSET COUNT: so many bytes from there on, as far as this connection carries; how many came is in
# $RUN/stretch.count. The request's pipe is held open: an end of it would be taken for ours.
stretch() {
    rm -f $RUN/stretch.* $RUN/connection.pid
    split_url "$1"
    mkfifo $RUN/stretch.request $RUN/stretch.fifo
    sh -c 'echo $$ >"$1/connection.pid"; exec 3<>"$1/stretch.request"
        printf "GET %s HTTP/1.1\r\nHost: %s\r\nRange: bytes=%s-\r\nConnection: close\r\n\r\n" "$4" "$2:$3" "$5" >&3
        exec nc -w 20 "$2" "$3" <&3 2>"$1/stretch.error"' nc $RUN "$host" "$port" "$path" "$2" |
        {
            take_answer "$2" || exit 0
            wc -c <$RUN/stretch.fifo >$RUN/stretch.count &
            dd bs=64k count="$3" iflag=count_bytes,fullblock 2>/dev/null | tee $RUN/stretch.fifo
            wait
        }
    came=$(number "$(cat $RUN/stretch.count 2>/dev/null)" 0)
}

# moved: asks elsewhere, if the last answer said where; into $from
moved() {
    if [ ! -s $RUN/stretch.moved ] || [ $moves -ge 5 ]; then return 1; fi
    moves=$((moves + 1))
    from=$(cat $RUN/stretch.moved)
    case $from in /*) from=http://$host:$port$from ;; esac
}

# size_of URL: how many bytes there are, as its server says; into $size
size_of() {
    from=$1 moves=0 try=0
    while :; do
        stretch "$from" 0 1 >/dev/null
        size=$(number "$(cat $RUN/stretch.total 2>/dev/null)" 0)
        [ "$came" = 0 ] || [ "$size" = 0 ] || return 0
        if moved; then continue; fi
        cause=$(last_line $RUN/stretch.error)
        [ "$came" = 0 ] || cause="its server does not say it"
        try=$((try + 1))
        if [ "$came" != 0 ] || refused "$cause" || [ $try -ge $RESUMES_IN_A_ROW ]; then
            fail "how large the image is cannot be known: ${cause:-the connection ended} (after $try tries)"
            return 1
        fi
        sleep $((try < 10 ? try : 10))
    done
}

# download URL BYTES: all of it to the output. How it ended is in $RUN/download.end: "done", or the cause.
download() {
    from=$1 offset=0 resumes=0 in_a_row=0 moves=0
    while :; do
        stretch "$from" $offset $(($2 - offset))
        offset=$((offset + came))
        if [ $offset -ge "$2" ]; then
            echo done >$RUN/download.end
            return
        fi
        # nobody takes the bytes any more
        [ ! -e $RUN/give_up ] || return
        if moved; then continue; fi
        cause=$(last_line $RUN/stretch.error)
        cause=${cause:-the connection ended}
        resumes=$((resumes + 1))
        if [ "$came" -gt 0 ]; then in_a_row=0; else in_a_row=$((in_a_row + 1)); fi
        if refused "$cause" || [ $in_a_row -ge $RESUMES_IN_A_ROW ] || [ $resumes -ge $RESUMES ]; then
            echo "$cause (at byte $offset of $2, after $resumes tries)" >$RUN/download.end
            return
        fi
        say "the image's stream broke at byte $offset of $2: $cause; going on from there"
        sleep $((in_a_row < 10 ? in_a_row + 1 : 10))
    done
}
