#compdef slotmq
# slotmq completion for zsh: add to ~/.zshrc, after compinit
#   source <(slotmq completion zsh)
_slotmq() {
    local line
    local -a names shown
    while IFS= read -r line; do
        case $line in
            :files) _files ;;
            :folders) _files -/ ;;
            *) names+=("${line%%$'\t'*}"); shown+=("${line//$'\t'/  -- }") ;;
        esac
    done < <("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" </dev/null 2>/dev/null)
    (( ${#names} )) && compadd -l -d shown -a names
}
compdef _slotmq slotmq
