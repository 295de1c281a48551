# slotmq completion for bash: add to ~/.bashrc
#   source <(slotmq completion bash)
_slotmq() {
    local line current="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
            :folders) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
            *) printf -v line %q "${line%%$'\t'*}"; COMPREPLY+=("$line") ;;
        esac
    done < <("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" </dev/null 2>/dev/null)
}
complete -F _slotmq slotmq
