package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exchange is one request and its response in a recording.
type exchange struct {
	title     string
	request   []byte // as it went over the wire
	response  []byte // status line, headers and body; HTTP chunk framing only where chunked
	chunked   bool
	truncated bool // the request's or the response's body is not all there
}

// readRecording parses a file of exchanges:
//
//	======== title
//	>>> request
//	...
//	<<< response
//	...
func readRecording(t *testing.T, name string) []exchange {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []exchange
	for _, section := range strings.Split("\n"+string(raw), "\n======== ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		request, response, ok := strings.Cut(strings.TrimPrefix(rest, ">>> request\n"), "\n<<< response\n")
		if !ok || !strings.HasPrefix(rest, ">>> request\n") || strings.HasPrefix(request, "(") {
			continue
		}
		e := exchange{title: title, response: []byte(response)}
		head, body, _ := strings.Cut(request, "\n\n")
		e.request = []byte(strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body)
		e.truncated = strings.Contains(request, " bytes in total]") || strings.Contains(response, " bytes in total]")
		_, answered, _ := strings.Cut(response, "\n\n")
		e.chunked = len(answered) > 0 && strings.ContainsRune("0123456789abcdef", rune(answered[0])) && strings.Contains(answered, "\n\n0")
		all = append(all, e)
	}
	if len(all) == 0 {
		t.Fatalf("testdata/%s holds no exchange", name)
	}
	return all
}

// reply is a response taken apart for comparison.
type reply struct {
	Status  string
	Headers []string // name: value, without the date and the length of bodies with made-up text
	Events  []string // of a stream
	Body    string   // of anything else
}

// want is the recorded reply of an exchange.
func (e exchange) want(t *testing.T) reply {
	t.Helper()
	head, body, _ := strings.Cut(string(e.response), "\n\n")
	lines := strings.Split(head, "\n")
	r := reply{Status: lines[0]}
	for _, line := range lines[1:] {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.header(name, value)
		}
	}
	if e.chunked {
		var events []string
		for _, chunk := range strings.Split(body, "\n\n\n") {
			_, event, _ := strings.Cut(chunk, "\n") // the first line is the size
			events = append(events, event)
		}
		body = strings.Join(events, "\n\n")
	}
	r.content(t, withoutNotes(lines, body))
	return r
}

// withoutNotes takes away what the recording says between exchanges.
func withoutNotes(header []string, body string) string {
	switch {
	case slices.Contains(header, "content-length: 0"):
		return ""
	case strings.HasPrefix(body, "{"):
		d := json.NewDecoder(strings.NewReader(body))
		var v json.RawMessage
		if d.Decode(&v) == nil {
			return string(v)
		}
	case slices.Contains(header, "transfer-encoding: chunked"):
		events := strings.Split(strings.TrimSpace(body), "\n\n")
		return strings.Join(slices.DeleteFunc(events, func(event string) bool {
			return !strings.HasPrefix(event, "data: ") && !strings.HasPrefix(event, "event: ") && !strings.HasPrefix(event, ":")
		}), "\n\n")
	}
	return strings.TrimSuffix(body, "\n")
}

func (r *reply) header(name, value string) {
	name = strings.ToLower(name)
	if name != "date" && name != "content-length" {
		r.Headers = append(r.Headers, name+": "+value)
		slices.Sort(r.Headers)
	}
}

func (r *reply) content(t *testing.T, body string) {
	body = strings.TrimRight(body, "\n")
	if !slices.Contains(r.Headers, "content-type: text/event-stream; charset=utf-8") {
		r.Body = masked(t, body)
		return
	}
	text := false // the event before is a piece of text: how many there are says nothing
	for _, event := range strings.Split(body, "\n\n") {
		name, data, _ := strings.Cut("\n"+event, "\ndata: ")
		m := data
		if strings.HasPrefix(data, "{") && !strings.HasPrefix(data, `{"error"`) {
			m = masked(t, data)
		}
		m = strings.TrimPrefix(name, "\n") + " " + m
		isText := strings.Contains(m, `"delta":"TEXT"`) || strings.Contains(m, `"delta":{"content":"TEXT"}`) && !strings.Contains(m, `"role"`) ||
			strings.Contains(m, `"text_delta"`) || strings.Contains(m, `"text":"TEXT","logprobs":null,"finish_reason":null`)
		if strings.Contains(m, `"finish_reason":"`) {
			// Whether the last token has a text of its own is the model's affair.
			isText = false
			m = strings.Replace(m, `"delta":{"content":"TEXT"}`, `"delta":{}`, 1)
		}
		if isText && text {
			continue
		}
		text = isText
		r.Events = append(r.Events, m)
	}
}

// masked spells a JSON text anew with everything replaced that differs from run to run.
func masked(t *testing.T, text string) string {
	t.Helper()
	if !json.Valid([]byte(text)) {
		return text
	}
	v, err := parseOrdered([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return string(encode(mask(v)))
}

func mask(v any) any {
	switch v := v.(type) {
	case list:
		for i := range v {
			v[i] = mask(v[i])
		}
	case object:
		for i, f := range v {
			text, isText := f.value.(string)
			switch f.key {
			case "id", "item_id", "created", "created_at", "sequence_number", "root":
				if text != "tiny" || f.key == "root" {
					v[i].value = "ID"
				}
			case "system_fingerprint":
				if isText {
					v[i].value = text[:strings.LastIndex(text, "-")]
				}
			case "content", "text", "delta":
				if isText {
					v[i].value = "TEXT"
				} else {
					v[i].value = mask(f.value)
				}
			default:
				v[i].value = mask(f.value)
			}
		}
	}
	return v
}

// send writes a raw request on a connection of its own and takes the reply apart.
func (n *network) send(t *testing.T, raw []byte) reply {
	t.Helper()
	r, body := n.roundTrip(t, raw)
	got := reply{Status: r.Proto + " " + r.Status}
	for name, values := range r.Header {
		for _, v := range values {
			got.header(name, v)
		}
	}
	if len(r.TransferEncoding) > 0 {
		got.header("transfer-encoding", strings.Join(r.TransferEncoding, ", "))
	}
	if r.Close { // ReadResponse takes the header away
		got.header("connection", "close")
	}
	got.content(t, string(body))
	return got
}

// roundTrip writes a raw request on a connection of its own and reads the whole response. The
// length of the body must be the announced one.
func (n *network) roundTrip(t *testing.T, raw []byte) (*http.Response, []byte) {
	t.Helper()
	c := n.dial()
	defer c.Close()
	go c.Write(raw) // the server may answer before it has read everything; Close ends it
	method, _, _ := strings.Cut(string(raw), " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.80q: %v", raw, err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("%.80q: %v after %q", raw, err, body)
	}
	return r, body
}

// post makes a raw request out of a JSON body.
func post(path, body string, headers ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: vllm.test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}
