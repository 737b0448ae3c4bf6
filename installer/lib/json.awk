# Makes JSON strings of bytes, given as hex pairs (xxd -p). Every line becomes a string of its own, with commas between;
# with one=1 everything becomes one string, its line breaks escaped.
#
# The output is plain ASCII: whatever else is there is written as \u escapes, and bytes that are not UTF-8 as U+FFFD.
# Serial numbers of real machines hold quotes, backslashes, control characters and worse.

function value(pair) {
    return (index("0123456789abcdef", substr(pair, 1, 1)) - 1) * 16 + index("0123456789abcdef", substr(pair, 2, 1)) - 1
}

function escape(point) {
    if (point > 65535) {
        point -= 65536
        return sprintf("\\u%04x\\u%04x", 55296 + int(point / 1024), 56320 + point % 1024)
    }
    return sprintf("\\u%04x", point)
}

# the character that begins at byte i, escaped; `used` is how many bytes it has
function wide(i,    first, point, more, least, k) {
    first = byte[i]
    used = 1
    if (first >= 194 && first < 224) { more = 1; point = first - 192; least = 128 }
    else if (first >= 224 && first < 240) { more = 2; point = first - 224; least = 2048 }
    else if (first >= 240 && first < 245) { more = 3; point = first - 240; least = 65536 }
    else return "\\ufffd"
    for (k = 1; k <= more; k++) {
        if (i + k > count || byte[i + k] < 128 || byte[i + k] > 191) return "\\ufffd"
        point = point * 64 + byte[i + k] - 128
    }
    if (point < least || point > 1114111 || (point >= 55296 && point < 57344)) return "\\ufffd"
    used = more + 1
    return escape(point)
}

{
    for (i = 1; i < length($0); i += 2) byte[++count] = value(substr($0, i, 2))
}

END {
    out = "\""
    for (i = 1; i <= count; i += used) {
        used = 1
        if (byte[i] == 10 && !one) { if (i < count) out = out "\",\"" }
        else if (byte[i] == 34 || byte[i] == 92) out = out "\\" sprintf("%c", byte[i])
        else if (byte[i] < 32 || byte[i] == 127) out = out escape(byte[i])
        else if (byte[i] < 128) out = out sprintf("%c", byte[i])
        else out = out wide(i)
    }
    if (count || one) printf "%s\"", out
}
