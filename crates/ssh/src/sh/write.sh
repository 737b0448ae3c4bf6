# Writes a file whole or not at all. Set before: path, mode, and the function content (prints it in base64).
command -v base64 >/dev/null || no missing base64
[ ! -d "$path" ] || no failed "$path is a folder"
new=$(mktemp "$path.XXXXXX" 2>/dev/null) || no failed "no file can be made beside $path"
if content | base64 -d >"$new" && chmod "$mode" "$new" && { sync "$new" 2>/dev/null; mv "$new" "$path"; }; then
    say written
else
    rm -f "$new"
    no failed "$path could not be written"
fi
