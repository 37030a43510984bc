package llmapi

import (
	"bytes"
	"slices"
)

// maxEvent bounds what is kept of one event. An event beyond it is read only as
// far as it was kept: its name still counts, its usage may be lost.
const maxEvent = 4 << 20

// keptCap is the capacity that an idle buffer may keep between events.
const keptCap = 16 << 10

// eventEnd finds the ends of server-sent events in a byte stream, split
// anywhere. Lines end with LF or CRLF.
type eventEnd struct {
	line int  // bytes of the current line
	cr   bool // its only byte is a carriage return
}

// cut returns how much of p belongs to the current event, its closing blank line
// included, and whether the event ends there.
func (e *eventEnd) cut(p []byte) (n int, ended bool) {
	for n < len(p) {
		i := bytes.IndexByte(p[n:], '\n')
		if i < 0 {
			e.more(p[n:])
			return len(p), false
		}
		e.more(p[n : n+i])
		n += i + 1
		blank := e.line == 0 || e.cr
		*e = eventEnd{}
		if blank {
			return n, true
		}
	}
	return n, false
}

func (e *eventEnd) more(p []byte) {
	if len(p) == 0 {
		return
	}
	e.cr = e.line == 0 && len(p) == 1 && p[0] == '\r'
	e.line += len(p)
}

// parseEvent returns the name and the data of an event. Several data lines are
// joined with line feeds.
func parseEvent(event []byte) (name, data []byte) {
	lines := 0
	for len(event) > 0 {
		var line []byte
		line, event, _ = bytes.Cut(event, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = value
		case "data":
			switch lines++; lines {
			case 1:
				data = value // no copy in the common case
			case 2:
				data = slices.Concat(data, []byte("\n"), value)
			default:
				data = append(append(data, '\n'), value...)
			}
		}
	}
	return name, data
}

// Observer reads a stream of server-sent events as it passes, split anywhere:
// usage, ending, and whether the answer itself has begun. It changes nothing and
// keeps no more than the unfinished event. It is for one stream and not safe for
// concurrent use.
type Observer struct {
	route   Route
	end     eventEnd
	partial []byte // the unfinished event, up to maxEvent

	id      string
	counts  counts
	known   bool
	ending  Ending
	began   bool
	alive   bool // a comment or a ping was seen
	stopped bool // messages: a stop reason was told
}

// NewObserver returns an observer for an answer on the route. On a route that
// does not generate it observes nothing.
func NewObserver(route Route) *Observer { return &Observer{route: route} }

// ID is the answer's id as the engine told it. It may be empty until the answer's
// last event has passed.
func (o *Observer) ID() string { return o.id }

// Usage is the usage told so far.
func (o *Observer) Usage() Usage {
	if !o.known {
		return Usage{}
	}
	return o.counts.usage()
}

// Ending is the ending seen so far.
func (o *Observer) Ending() Ending { return o.ending }

// Began reports whether an event that carries a part of the answer was seen.
// Comments, pings and the announcement of a response or message are none.
func (o *Observer) Began() bool { return o.began }

// Announced reports whether at most the announcement of a response or message was
// seen: no part of it, no ending, and no comment or ping, which engines send so
// that whoever waits learns that they are alive.
func (o *Observer) Announced() bool { return !o.began && !o.alive && o.ending == EndNone }

// Observe takes the next bytes of the stream. It returns how many of them stand
// before the first event that showed an EndAborted or EndError: len(p) as a
// rule, and 0 when that event began in earlier bytes or was seen before. Who puts
// an error of its own in the place of that event sends on only those.
func (o *Observer) Observe(p []byte) int {
	if !o.route.Generates() {
		return len(p)
	}
	good := len(p)
	if o.ending >= EndAborted {
		good = 0
	}
	for at := 0; at < len(p); {
		n, ended := o.end.cut(p[at:])
		event := p[at:min(at+n, at+maxEvent)]
		if len(o.partial) > 0 || !ended {
			event = event[:min(len(event), maxEvent-len(o.partial))]
			o.partial = append(o.partial, event...)
			event = o.partial
		}
		if !ended {
			break
		}
		before := o.ending
		o.read(event)
		if before < EndAborted && o.ending >= EndAborted {
			good = at
		}
		if o.partial = o.partial[:0]; cap(o.partial) > keptCap {
			o.partial = nil
		}
		at += n
	}
	return good
}

func (o *Observer) read(event []byte) {
	name, data := parseEvent(event)
	if len(data) == 0 {
		o.alive = true
		return
	}
	switch o.route {
	case RouteMessages:
		o.readMessages(name, data)
	case RouteResponses:
		o.readResponses(name, data)
	default:
		o.readChoices(data)
	}
}

func (o *Observer) ended(e Ending) { o.ending = max(o.ending, e) }

// readChoices reads an event of chat or completions.
func (o *Observer) readChoices(data []byte) {
	if plainDelta(data) {
		o.began = true
		return
	}
	if string(data) == "[DONE]" {
		o.ended(EndComplete)
		return
	}
	f := o.frame(data)
	o.known = o.counts.told
	o.began = o.began || f.hasChoices
	if f.aborted {
		o.ended(EndAborted)
	}
}

// plainDelta reports whether a chunk shows, without being parsed, that it holds
// nothing but a piece of the answer: one choice, not finished, no usage and no
// error. It is the common case and may err only towards false. Inside a JSON
// string the patterns cannot occur, since their quotes would be escaped there.
func plainDelta(data []byte) bool {
	const finish = `"finish_reason":`
	_, rest, found := bytes.Cut(data, []byte(finish))
	return found && bytes.HasPrefix(rest, []byte("null")) &&
		!bytes.Contains(rest, []byte(finish)) &&
		!bytes.Contains(data, []byte(`"usage":`)) && !bytes.Contains(data, []byte(`"error"`))
}

// readMessages reads an Anthropic event.
func (o *Observer) readMessages(name, data []byte) {
	switch string(name) {
	case "content_block_start", "content_block_delta":
		o.began = true
		return
	case "ping":
		o.alive = true
		return
	case "content_block_stop":
		return
	}
	f := o.frame(data)
	if len(name) == 0 {
		name = []byte(f.kind)
	}
	switch string(name) {
	case "content_block_start", "content_block_delta":
		o.began = true
	case "ping":
		o.alive = true
	case "message_delta":
		// The usage of message_start is a first guess: no answer yet, and the
		// cached part not told apart.
		o.known = o.counts.told
		o.stopped = f.stopped
	case "message_stop":
		if o.stopped {
			o.ended(EndComplete)
		} else {
			o.ended(EndAborted)
		}
	case "error":
		o.ended(EndError)
	}
}

// readResponses reads an event of responses.
func (o *Observer) readResponses(name, data []byte) {
	switch string(name) {
	case "response.created", "response.in_progress", "response.queued":
		return
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled", "error", "":
	default:
		o.began = true
		return
	}
	f := o.frame(data)
	if len(name) == 0 {
		name = []byte(f.kind)
	}
	switch string(name) {
	case "response.created", "response.in_progress", "response.queued":
	case "response.completed", "response.incomplete":
		o.known = o.counts.told
		o.ended(EndComplete)
	case "response.cancelled":
		o.ended(EndAborted)
	case "response.failed", "error":
		o.known = o.counts.told
		o.ended(EndError)
	default:
		o.began = o.began || bytes.HasPrefix(name, []byte("response."))
	}
	if f.status == "cancelled" {
		o.ended(EndAborted)
	}
}

// frame parses an event's data, with what all dialects have in common.
func (o *Observer) frame(data []byte) frame {
	f := frame{counts: o.counts}
	f.parse(data)
	o.counts = f.counts
	if f.id != "" {
		o.id = f.id
	}
	if f.failed {
		o.ended(EndError)
	}
	return f
}
