package top

import (
	"fmt"
	"strconv"
	"strings"
)

var conversationColumns = []column{
	{title: "conversation", left: true},
	{title: "model", left: true, most: 24, drop: 7},
	{title: "client", left: true, most: 20, drop: 2},
	{title: "home"},
	{title: "turns"},
	{title: "context"},
	{title: "cached"},
	{title: "in flight"},
	{title: "spills", drop: 3},
	{title: "moves", drop: 4},
	{title: "seen", drop: 1},
	{title: "id from", left: true, most: 26, drop: 6},
	{title: "parent", left: true, drop: 5},
}

// conversations is the screen of the table.
func (s screen) conversations(width, room int) []string {
	all := s.listed()
	if len(all) == 0 {
		return []string{s.nothing(len(s.data.Conversations), "conversation")}
	}
	order := strings.ReplaceAll(s.order(conversations), "_", " ")
	first := min(s.first, len(all)-1)
	last := min(first+max(room-2, 1), len(all))
	head := fmt.Sprintf("%d to %d of %d by %s", first+1, last, len(all), order)
	if f := s.filter[conversations]; f != "" {
		head += fmt.Sprintf(", with %q among the first %d", f, len(s.data.Conversations))
	}
	if s.data.More {
		head += "; the gateway knows more"
	}
	return append([]string{s.theme.dim.Render(head)}, s.conversationTable(all[first:last], width)...)
}

func (s screen) conversationTable(rows []Conversation, width int) []string {
	columns := conversationColumns
	if len(s.data.Models) < 2 {
		columns = append(columns[:1:1], columns[2:]...)
	}
	var cells [][]cell
	for _, c := range rows {
		open := plain(strconv.Itoa(c.InFlight))
		if c.InFlight > 0 {
			open.style = s.theme.good
		}
		row := []cell{
			plain(clean(c.ID)), plain(clean(c.Model)), plain(clean(text(c.Client))), plain(number(c.Home)), plain(thousands(c.Turns)),
			plain(number(c.PromptTokens)), plain(cachedShare(c)), open, plain(thousands(c.Spills)), plain(thousands(c.Moves)),
			plain(since(s.now, c.LastSeen) + " ago"), plain(clean(c.Source)), plain(clean(text(c.Parent))),
		}
		if len(s.data.Models) < 2 {
			row = append(row[:1:1], row[2:]...)
		}
		cells = append(cells, row)
	}
	return table(columns, cells, width, s.theme.dim)
}

// cachedShare is the cached part of the latest prompt.
func cachedShare(c Conversation) string {
	if c.PromptTokens == nil || c.CachedTokens == nil || *c.PromptTokens <= 0 {
		return unknown
	}
	share := 100 * float64(*c.CachedTokens) / float64(*c.PromptTokens)
	return percent(&share)
}
