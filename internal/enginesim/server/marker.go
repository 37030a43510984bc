package server

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Markers in the newest user message steer the simulated answer:
//
//	[[tool]]                    call a tool, choosing one of those offered and the least arguments
//	[[tool NAME]]               call this tool with the least arguments
//	[[tool NAME {"a":1}]]       call this tool with these arguments
//	[[tokens N]]                answer with N tokens
//
// A tool marker counts only while no tool result follows it, so that the request that
// brings the result gets an ordinary answer; a tokens marker counts for both.
const (
	toolMarker   = "[[tool"
	tokensMarker = "[[tokens"
	markerEnd    = "]]"
)

// wishes are the markers found in a request.
type wishes struct {
	tool      bool
	toolName  string          // empty: any
	arguments json.RawMessage // nil: the least that the tool's schema demands
	tokens    int             // 0: no wish
}

// readWishes looks for markers in the newest user message of a conversation.
func readWishes(messages []message) wishes {
	var w wishes
	toolResult := false
	for i := len(messages) - 1; i >= 0; i-- {
		switch m := messages[i]; m.role {
		case "tool":
			toolResult = true
		case "user":
			w.tokens = tokensWish(m.content)
			if !toolResult {
				w.toolWish(m.content)
			}
			return w
		}
	}
	return w
}

func tokensWish(text string) int {
	_, rest, found := strings.Cut(text, tokensMarker)
	number, _, closed := strings.Cut(rest, markerEnd)
	if !found || !closed {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// toolWish reads the first tool marker of text. A marker that does not parse is no marker.
func (w *wishes) toolWish(text string) {
	_, rest, found := strings.Cut(text, toolMarker)
	if !found || rest == "" || !strings.ContainsRune(" {]", rune(rest[0])) {
		return
	}
	rest = strings.TrimSpace(rest)
	end := strings.IndexAny(rest, " {]")
	if end < 0 {
		return
	}
	name, rest := rest[:end], strings.TrimSpace(rest[end:])
	var arguments json.RawMessage
	if strings.HasPrefix(rest, "{") {
		// The arguments may hold "]]" themselves, so JSON says where they end.
		d := json.NewDecoder(strings.NewReader(rest))
		if d.Decode(&arguments) != nil {
			return
		}
		rest = strings.TrimSpace(rest[d.InputOffset():])
	}
	if strings.HasPrefix(rest, markerEnd) {
		w.tool, w.toolName, w.arguments = true, name, arguments
	}
}
