package pool

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// unmarkedPath is the route on which an answer that vLLM cut short at its death
	// has the same bytes as a finished one (0.32 and 0.33). Only the death, which
	// follows within six seconds, tells.
	unmarkedPath = "/v1/responses"
	// doubtFor is how long before the death of its server such an answer is in doubt.
	doubtFor = 10 * time.Second
)

// doubts are the answers of a server that its death would put in doubt.
type doubts struct {
	recent []ended
	found  int // how many its death did
}

type ended struct {
	at                      time.Time
	requestID, conversation string
}

// note keeps an answer that ended as if it were complete.
func (d *doubts) note(now time.Time, l *Lease) {
	if l.req.Path != unmarkedPath {
		return
	}
	d.recent = slices.DeleteFunc(d.recent, func(e ended) bool { return now.Sub(e.at) > doubtFor })
	d.recent = append(d.recent, ended{now, l.req.ID, l.req.Conversation})
}

// trouble is for the page; empty when there is nothing to doubt.
func (d *doubts) trouble() string {
	switch d.found {
	case 0:
		return ""
	case 1:
		return "one answer on " + unmarkedPath + " ended shortly before, perhaps cut short"
	}
	return fmt.Sprintf("%d answers on %s ended shortly before, perhaps cut short", d.found, unmarkedPath)
}

// doubt tells of the answers that a server's death puts in doubt. Callers hold mu.
func (p *Pool) doubt(now time.Time, s *server) {
	for _, e := range s.recent {
		if now.Sub(e.at) > doubtFor {
			continue
		}
		s.found++
		p.note(slog.LevelWarn, "an answer ended shortly before its server died: it may be cut short", "request_id", e.requestID,
			"conversation", e.conversation, "ended_before", now.Sub(e.at).Round(time.Millisecond).String())
	}
	s.recent = nil
}
