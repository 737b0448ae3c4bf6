# JSON, made of whatever bytes there are (json.awk).

# json_string TEXT: one string, with its quotes
json_string() {
    printf '%s' "$1" | xxd -p | awk -v one=1 -f /lib/millwright/json.awk
}

# json_lines <TEXT: a string for every line, with commas between
json_lines() {
    xxd -p | awk -f /lib/millwright/json.awk
}

# json_text NAME <JSON: the text of a member, of an answer as simple as the server's
json_text() {
    tr -d '\n' | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"
}
