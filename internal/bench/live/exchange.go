package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/upstream"
)

// flight is a turn on its way.
type flight struct {
	s       *System
	to      *url.URL
	ours    bool // it goes to the gateway
	who     identity
	answers []string // of the conversation until now
	turn    bench.Turn

	ctx    context.Context
	cancel context.CancelFunc

	result bench.Result
	text   strings.Builder // of the answer
}

// Send implements bench.System.
func (s *System) Send(r bench.Request, done func(bench.Result)) {
	f := &flight{
		s: s, to: s.to, ours: s.ours, turn: r.Turn,
		result: bench.Result{Sent: s.Now(), First: -1, Token: -1, Last: -1, Prompt: -1, Cached: -1, Output: -1, Replica: -1},
	}
	c := s.conversation(r)
	if c != nil {
		f.who, f.answers = c.identity, c.answers
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	s.flights[f] = struct{}{}
	s.status.sent()
	s.running.Go(func() {
		f.fly()
		s.queue.add(func() {
			f.cancel()
			delete(s.flights, f)
			if c != nil {
				text := quoted(strings.TrimSpace(f.text.String()))
				c.answers = append(c.answers, string(text[1:len(text)-1]))
			}
			s.status.ended(f.result)
			done(f.result)
		})
	})
}

// fly sends the request and reads its answer.
func (f *flight) fly() {
	s := f.s
	messages := s.messagesOf(f.turn, f.answers)
	body := s.o.Dialect.body(s.model, f.turn.Answer.Tokens, f.who, messages)
	head := s.head(f.to, f.who, len(body))
	sent := time.Now()
	f.result.Sent = s.system(sent.Sub(s.start))
	err := f.exchange(sent.Add(s.wall(s.o.Timeout)), head, body)
	switch {
	case err == nil:
		f.result.End = bench.Finished
	case f.ctx.Err() != nil:
		f.result.End = bench.Cut
	default:
		f.result.End, f.result.Error = bench.Failed, describe(err, s.o.Timeout)
	}
}

func (f *flight) exchange(until time.Time, head, body []byte) error {
	a, err := f.s.client.Send(f.ctx, upstream.Request{To: f.to, Method: "POST", Head: head, Body: body, Until: until})
	if err != nil {
		return err
	}
	defer a.Close()
	a.SetReadDeadline(until)
	f.decided(a.Header)
	if a.Status != 200 {
		return refusal(a)
	}
	if kind := a.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return &failure{"no stream", fmt.Sprintf("the answer's type is %q", kind)}
	}
	err = f.read(a)
	f.decided(a.Trailer)
	return err
}

// decided takes what our gateway says of its decision: in the head of an answer,
// or in the trailer when it had to send the head before it decided.
func (f *flight) decided(fields []upstream.Field) {
	if !f.ours {
		return
	}
	for _, h := range fields {
		switch h.Name {
		case "X-Warden-Decision":
			f.result.Reason = h.Value
		case "X-Warden-Replica":
			if n, err := strconv.Atoi(h.Value); err == nil {
				f.result.Replica = n
			}
		}
	}
}

// afterEnd is how long a stream may stay open after its last event.
const afterEnd = time.Second

// maxLine bounds one line of a stream.
const maxLine = 4 << 20

// read reads a stream to its end.
func (f *flight) read(a *upstream.Answer) error {
	observer := llmapi.NewObserver(f.s.o.Dialect.route())
	came := arrivals{now: f.s.Now, Observer: observer}
	lines := bufio.NewScanner(io.TeeReader(a, &came))
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if f.result.First < 0 && !isPing(data) {
			f.result.First = came.at
		}
		if f.piece(data) && f.result.Token < 0 {
			f.result.Token = came.at
		}
		if f.result.Last < 0 && observer.Ending() != llmapi.EndNone {
			f.result.Last = came.at
			a.SetReadDeadline(time.Now().Add(afterEnd))
		}
	}
	if u := observer.Usage(); u.Known {
		f.result.Prompt, f.result.Output = int(u.Prompt), int(u.Completion)
		if u.CacheState == llmapi.CacheReported {
			f.result.Cached = int(u.Cached)
		}
	}
	switch observer.Ending() {
	case llmapi.EndComplete:
		if f.result.Last < 0 { // the end stood in a line that never ended
			f.result.Last = came.at
		}
		return nil
	case llmapi.EndAborted:
		return &failure{"aborted", "the engine cut the answer short and closed it as if it were complete"}
	case llmapi.EndError:
		return &failure{"error event", "the stream ended with an error"}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &failure{"cut short", "the stream ended before the answer did"}
}

// arrivals observes the bytes of a stream and remembers when the latest came.
type arrivals struct {
	*llmapi.Observer
	now func() time.Duration
	at  time.Duration
}

func (a *arrivals) Write(p []byte) (int, error) {
	a.at = a.now()
	a.Observe(p)
	return len(p), nil
}

// isPing tells Anthropic's keep-alive event, which anybody on the way may send
// before there is an answer. Those of OpenAI's streams are comments.
func isPing(data []byte) bool {
	if !bytes.Contains(data, []byte(`"ping"`)) {
		return false
	}
	var e struct{ Type string }
	return json.Unmarshal(data, &e) == nil && e.Type == "ping"
}

// piece takes the data of an event, and reports whether it holds something that
// the model generated: not the role, nor the announcement of an empty block.
func (f *flight) piece(data []byte) bool {
	if !bytes.Contains(data, []byte(`"delta"`)) && !bytes.Contains(data, []byte(`"content_block"`)) {
		return false
	}
	var e struct {
		// Anthropic. The announcement of a block of text is empty with all who serve it
		// today, that of a tool call has its name.
		Block struct{ Name, Text, Thinking string } `json:"content_block"`
		Delta struct {
			Text, Thinking string
			JSON           string `json:"partial_json"`
		}
		Choices []struct { // OpenAI
			Delta struct {
				Content, Reasoning, Refusal string
				ReasoningContent            string            `json:"reasoning_content"`
				ToolCalls                   []json.RawMessage `json:"tool_calls"`
			}
		}
	}
	if json.Unmarshal(data, &e) != nil {
		return false // what the stream is worth, its ending tells
	}
	f.text.WriteString(e.Block.Text)
	f.text.WriteString(e.Delta.Text)
	some := e.Block.Name != "" || e.Block.Text != "" || e.Block.Thinking != "" || e.Delta.Text != "" || e.Delta.Thinking != "" || e.Delta.JSON != ""
	for _, c := range e.Choices {
		f.text.WriteString(c.Delta.Content)
		some = some || c.Delta.Content != "" || c.Delta.Reasoning != "" || c.Delta.ReasoningContent != "" || c.Delta.Refusal != "" || len(c.Delta.ToolCalls) > 0
	}
	return some
}

// failure is why a turn failed: a class that failures can be counted by, and
// what happened.
type failure struct{ class, detail string }

func (e *failure) Error() string { return e.class + ": " + e.detail }

// refusal is an answer with an error status.
func refusal(a *upstream.Answer) error {
	class := fmt.Sprintf("status %d", a.Status)
	if why := a.Get("X-Warden-Error"); why != "" {
		class += " " + why
	}
	text, _ := io.ReadAll(io.LimitReader(a, 16<<10)) // what came says enough
	return &failure{class, errorText(text)}
}

// describe puts a failure into words whose part before the colon is its class.
func describe(err error, timeout time.Duration) string {
	var known *failure
	var op *net.OpError
	switch {
	case errors.As(err, &known):
		return known.Error()
	case errors.Is(err, upstream.ErrLocal):
		return "this machine: " + err.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("timeout: no end of the answer within %v", timeout)
	case errors.As(err, &op) && op.Op == "dial":
		return "unreachable: " + err.Error()
	}
	return "broken: " + err.Error()
}
