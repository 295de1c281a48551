# slotmq completion for fish: write to ~/.config/fish/completions/slotmq.fish
#   slotmq completion fish > ~/.config/fish/completions/slotmq.fish
function __slotmq_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l current (commandline -ct)
    for line in ($words[1] completion words -- $words[2..-1] </dev/null 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path $current
            case :folders
                __fish_complete_directories $current
            case '*'
                echo -- $line
        end
    end
end
complete -c slotmq -f -a '(__slotmq_complete)'
