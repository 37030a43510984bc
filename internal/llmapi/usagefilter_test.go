package llmapi

import (
	"bytes"
	"strings"
	"testing"
)

const usageChunk = `data: {"id":"c","object":"chat.completion.chunk","model":"tiny","choices":[],"usage":{"prompt_tokens":286,"total_tokens":294,"completion_tokens":8},"system_fingerprint":"x"}` + "\n\n"

func TestUsageFilter(t *testing.T) {
	done := "data: [DONE]\n\n"
	tests := []struct{ name, in, want string }{
		{"nothing to take out", chatDelta + done, chatDelta + done},
		{"one frame", chatDelta + usageChunk + done, chatDelta + done},
		{"with spaces", chatDelta + `data: {"choices": [ ], "usage": {"prompt_tokens": 1}}` + "\n\n" + done, chatDelta + done},
		{"usage before choices", `data:{"usage":{"prompt_tokens":1},"choices":[]}` + "\n\n" + done, done},
		{"CRLF", strings.ReplaceAll(chatDelta+usageChunk+done, "\n", "\r\n"), strings.ReplaceAll(chatDelta+done, "\n", "\r\n")},
		{"usage beside a choice stays", chatRunning + done, chatRunning + done},
		{"null usage stays", `data: {"choices":[],"usage":null}` + "\n\n", `data: {"choices":[],"usage":null}` + "\n\n"},
		{"no usage stays", `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n", `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n"},
		{"no choices stays", `data: {"usage":{}}` + "\n\n", `data: {"usage":{}}` + "\n\n"},
		{"errors stay", `data: {"error":{"message":"x"}}` + "\n\n" + done, `data: {"error":{"message":"x"}}` + "\n\n" + done},
		{"comments stay", ": keep-alive\n\n" + usageChunk + ":\n\n", ": keep-alive\n\n:\n\n"},
		{"frame behind a comment in its event stays", ": x\n" + usageChunk, ": x\n" + usageChunk},
		{"not JSON stays", "data: \"choices\":[] \"usage\":{}\n\n", "data: \"choices\":[] \"usage\":{}\n\n"},
		{"cut frame stays", chatDelta + usageChunk[:60], chatDelta + usageChunk[:60]},
		{"cut before the blank line stays", usageChunk[:len(usageChunk)-1], usageChunk[:len(usageChunk)-1]},
		{"huge event stays", `data: {"x":"` + strings.Repeat("y", maxUsageFrame) + `","choices":[],"usage":{}}` + "\n\n", `data: {"x":"` + strings.Repeat("y", maxUsageFrame) + `","choices":[],"usage":{}}` + "\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for cut := range len(tt.in) + 1 {
				f := NewUsageFilter()
				out := f.Filter(nil, []byte(tt.in[:cut]))
				out = f.Filter(out, []byte(tt.in[cut:]))
				if out = f.Flush(out); string(out) != tt.want {
					t.Fatalf("cut at %d: got\n%s\nwant\n%s", cut, out, tt.want)
				}
			}
			f, out := NewUsageFilter(), []byte(nil)
			for i := range len(tt.in) {
				out = f.Filter(out, []byte(tt.in[i:i+1]))
			}
			if out = f.Flush(out); string(out) != tt.want {
				t.Fatalf("byte by byte: got\n%s\nwant\n%s", out, tt.want)
			}
		})
	}
}

// A stream that the engine was asked to tell usage in reads, filtered, like the
// one without the request.
func TestUsageFilterOnRecordings(t *testing.T) {
	for _, name := range []string{"chat-usage", "completions-usage", "chat-no-details", "chat-0.33"} {
		in := testdata(t, "streams", name+".sse")
		f := NewUsageFilter()
		out := f.Flush(f.Filter(nil, in))
		if bytes.Contains(out, []byte(`"usage"`)) || !bytes.HasSuffix(out, []byte("data: [DONE]\n\n")) {
			t.Errorf("%s: %s", name, out)
		}
		if got, want := bytes.Count(out, []byte("\n\n")), bytes.Count(in, []byte("\n\n"))-1; got != want {
			t.Errorf("%s: %d events, want %d", name, got, want)
		}
	}
}

// What is not the frame must not wait for its end.
func TestUsageFilterHoldsBackLittle(t *testing.T) {
	tests := []struct{ in, want string }{
		{chatDelta, chatDelta},
		{chatDelta[:len(chatDelta)-1], chatDelta[:len(chatDelta)-1]}, // choices is not empty
		{chatDelta + chatDelta[:40], chatDelta},
		{chatDelta + usageChunk[:len(usageChunk)-1], chatDelta},
		{": keep", ": keep"},
		{"event: x\n", "event: x\n"},
	}
	for _, tt := range tests {
		if got := NewUsageFilter().Filter(nil, []byte(tt.in)); string(got) != tt.want {
			t.Errorf("of %q came %q at once, want %q", tt.in, got, tt.want)
		}
	}
}

// FuzzUsageFilter checks that it does not matter where a stream is split, and
// that only whole events go missing.
func FuzzUsageFilter(f *testing.F) {
	f.Add([]byte(chatDelta+usageChunk+"data: [DONE]\n\n"), uint16(3), uint16(50))
	f.Add([]byte(": x\n\n"+chatRunning+strings.ReplaceAll(usageChunk, "\n", "\r\n")), uint16(1), uint16(1))
	f.Add(testdata(f, "streams", "chat-usage.sse"), uint16(200), uint16(9))
	f.Fuzz(func(t *testing.T, s []byte, a, b uint16) {
		whole := NewUsageFilter()
		want := whole.Flush(whole.Filter(nil, s))
		split, got := NewUsageFilter(), []byte(nil)
		for rest := s; len(rest) > 0; a, b = b, a {
			n := min(len(rest), int(a)%257+1)
			got = split.Filter(got, rest[:n])
			rest = rest[n:]
		}
		if got = split.Flush(got); !bytes.Equal(got, want) {
			t.Fatalf("split %q, whole %q", got, want)
		}
		bytewise, got := NewUsageFilter(), got[:0]
		for i := range s {
			got = bytewise.Filter(got, s[i:i+1])
		}
		if got = bytewise.Flush(got); !bytes.Equal(got, want) {
			t.Fatalf("byte by byte %q, whole %q", got, want)
		}
		if len(want) > len(s) || len(want) < len(s) && !bytes.Contains(s, []byte("usage")) {
			t.Fatalf("%q became %q", s, want)
		}
	})
}
