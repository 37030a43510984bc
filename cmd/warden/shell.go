package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"lmwarden/internal/app"
)

// completionCommand and manCommand write what packages install beside the
// binary. Both are made from the command line's own model, so that they cannot
// fall behind it.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c completionCommand) Run(io app.IO, k *kong.Kong) error {
	switch c.Shell {
	case "bash":
		return bashCompletion(io.Out, k.Model)
	case "zsh":
		// zsh reads bash's completions when told to.
		if _, err := fmt.Fprintln(io.Out, "#compdef warden\nautoload -U +X bashcompinit && bashcompinit"); err != nil {
			return err
		}
		return bashCompletion(io.Out, k.Model)
	default:
		return fishCompletion(io.Out, k.Model)
	}
}

type manCommand struct{}

func (manCommand) Run(io app.IO, k *kong.Kong) error { return manPage(io.Out, k.Model) }

// command is one command of the tree with its words, as in [config check].
type command struct {
	words []string
	node  *kong.Node
}

// commandTree lists the visible commands, parents before children.
func commandTree(root *kong.Node) []command {
	var all []command
	var walk func(n *kong.Node, words []string)
	walk = func(n *kong.Node, words []string) {
		all = append(all, command{words, n})
		for _, child := range n.Children {
			if child.Type == kong.CommandNode && !child.Hidden {
				walk(child, append(slices.Clone(words), child.Name))
			}
		}
	}
	walk(root, nil)
	return all
}

// flagsOf lists the visible flags that a command takes, its parents' included.
func flagsOf(n *kong.Node) []*kong.Flag {
	var flags []*kong.Flag
	for ; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			if !f.Hidden {
				flags = append(flags, f)
			}
		}
	}
	slices.SortFunc(flags, func(a, b *kong.Flag) int { return cmp.Compare(a.Name, b.Name) })
	return flags
}

// offers lists the words that may follow a command: its commands and flags.
func offers(n *kong.Node) []string {
	var words []string
	for _, child := range n.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			words = append(words, child.Name)
		}
	}
	for _, f := range flagsOf(n) {
		words = append(words, "--"+f.Name)
	}
	return words
}

func bashCompletion(w io.Writer, model *kong.Application) error {
	var b strings.Builder
	b.WriteString(`_warden() {
  local word=${COMP_WORDS[COMP_CWORD]} at= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${COMP_WORDS[i]}" in
`)
	tree := commandTree(model.Node)
	for _, c := range tree[1:] {
		fmt.Fprintf(&b, "      %q) at=%q ;;\n", " "+strings.Join(c.words, " "), " "+strings.Join(c.words, " "))
	}
	b.WriteString("    esac\n  done\n  case \"$at\" in\n")
	for _, c := range tree {
		at := ""
		if len(c.words) > 0 {
			at = " " + strings.Join(c.words, " ")
		}
		fmt.Fprintf(&b, "    %q) COMPREPLY=($(compgen -W %q -- \"$word\")) ;;\n", at, strings.Join(offers(c.node), " "))
	}
	b.WriteString("  esac\n}\ncomplete -o default -F _warden warden\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func fishCompletion(w io.Writer, model *kong.Application) error {
	var b strings.Builder
	b.WriteString("complete -c warden -f\n")
	for _, c := range commandTree(model.Node) {
		when := "__fish_use_subcommand"
		if len(c.words) > 0 {
			when = "__fish_seen_subcommand_from " + c.words[len(c.words)-1]
		}
		for _, child := range c.node.Children {
			if child.Type == kong.CommandNode && !child.Hidden {
				fmt.Fprintf(&b, "complete -c warden -n %s -a %s -d %s\n", fishQuoted(when), child.Name, fishQuoted(child.Help))
			}
		}
		if c.node.Leaf() {
			for _, f := range flagsOf(c.node) {
				fmt.Fprintf(&b, "complete -c warden -n %s -l %s -d %s", fishQuoted(when), f.Name, fishQuoted(f.Help))
				if !f.IsBool() {
					b.WriteString(" -r -F")
				}
				b.WriteString("\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func fishQuoted(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// manPage writes warden(1) in the man macros.
func manPage(w io.Writer, model *kong.Application) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH WARDEN 1\n.SH NAME\nwarden \\- gateway in front of data\\-parallel LLM replicas\n")
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B warden\n.I COMMAND\n[flags]\n.SH DESCRIPTION\n%s\n.SH COMMANDS\n", roff(model.Help))
	for _, c := range commandTree(model.Node)[1:] {
		if !c.node.Leaf() {
			continue
		}
		fmt.Fprintf(&b, ".SS warden %s", roff(strings.Join(c.words, " ")))
		for _, arg := range c.node.Positional {
			fmt.Fprintf(&b, " %s", roff(arg.Summary()))
		}
		fmt.Fprintf(&b, "\n%s\n", roff(c.node.Help))
		for _, f := range flagsOf(c.node) {
			if f.Name == "help" {
				continue
			}
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(flagForm(f)), roff(f.Help))
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n")
	b.WriteString(".SH SIGNALS\nSIGTERM and SIGINT stop the gateway when its open answers have ended. SIGHUP reads the configuration again.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// flagForm is a flag with what it takes, as in --sessions=4,8,16.
func flagForm(f *kong.Flag) string {
	if f.IsBool() {
		return "--" + f.Name
	}
	return "--" + f.Name + "=" + f.FormatPlaceHolder()
}

// roff escapes text so that none of it is taken for a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(strings.Join(strings.Fields(s), " "))
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
