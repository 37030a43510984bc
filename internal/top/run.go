package top

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Run shows a gateway on a terminal until somebody quits or ctx ends. It fails
// when the gateway does not answer at the start, or refuses later. The environment
// tells what the terminal can, and that no colours are wanted (NO_COLOR).
func Run(ctx context.Context, g Gateway, address string, in io.Reader, out io.Writer, environ []string) error {
	noColour := func(v string) bool { name, value, _ := strings.Cut(v, "="); return name == "NO_COLOR" && value != "" }
	return run(ctx, g, address, styles(!slices.ContainsFunc(environ, noColour)), tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(environ))
}

func run(ctx context.Context, g Gateway, address string, look theme, o ...tea.ProgramOption) error {
	s := screen{gateway: g, address: address, theme: look}
	snapshot, err := g.Read(ctx, s.query())
	if err != nil {
		return err
	}
	s.data, s.at = snapshot, time.Now()
	s.now = s.at
	end, err := tea.NewProgram(s, append(o, tea.WithContext(ctx), tea.WithoutSignalHandler())...).Run()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("show the screen: %w", err)
	}
	if s, ok := end.(screen); ok && s.refused != nil {
		return s.refused
	}
	return nil
}

// Print writes the tables once, as plain text of any width.
func Print(ctx context.Context, g Gateway, out io.Writer) error {
	s := screen{}
	snapshot, err := g.Read(ctx, Query{Conversations: true, Sort: s.order(conversations), Limit: printedConversations})
	if err != nil {
		return err
	}
	s.data, s.at = snapshot, time.Now()
	s.now = s.at
	_, err = io.WriteString(out, strings.Join(s.text(), "\n")+"\n")
	return err
}

// printedConversations is how many rows Print writes of their table.
const printedConversations = 20

// text is everything at once.
func (s screen) text() []string {
	lines := []string{clean(s.data.Overview.State)}
	for _, w := range s.data.Overview.Warnings {
		lines = append(lines, "! "+clean(w))
	}
	lines = append(lines, s.tiles(math.MaxInt)...)
	for i := range s.data.Models {
		m := &s.data.Models[i]
		lines = append(append(lines, "", clean(m.Name)), s.pills(m, math.MaxInt)...)
		lines = append(lines, s.replicas(s.rows(m), math.MaxInt, len(m.Replicas))...)
		lines = append(lines, s.old(m)...)
	}
	if len(s.data.Conversations) > 0 {
		lines = append(append(lines, ""), s.conversationTable(s.data.Conversations, math.MaxInt)...)
	}
	if s.data.More {
		lines = append(lines, fmt.Sprintf("and more: these are the latest %d", len(s.data.Conversations)))
	}
	return lines
}
