package pool

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// doubtFor is how long before the death of its server an answer is in doubt that
// would have the same bytes if the engine had cut it short. Only the death, which
// follows within six seconds, tells.
const doubtFor = 10 * time.Second

// Unmarked says of the answer in force that its end does not tell whether it is
// whole.
func (l *Lease) Unmarked() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.unmarked = true
}

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
	if !l.unmarked {
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
		return "one answer ended shortly before, perhaps cut short"
	}
	return fmt.Sprintf("%d answers ended shortly before, perhaps cut short", d.found)
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
