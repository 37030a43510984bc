package llmapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 200) // beyond the blocks that are looked at together
	deep := func(n int, open, close string) string {
		return `{"a":` + strings.Repeat(open, n-1) + "1" + strings.Repeat(close, n-1) + `}`
	}
	tests := []struct {
		name, body string
		offset     int
		want       string // part of the message
	}{
		{"nothing", "", 0, "where a JSON object should be"},
		{"only space", " \n", 2, "where a JSON object should be"},
		{"array", `[{"model":"m"}]`, 0, "where a JSON object should be"},
		{"string", `"model"`, 0, "where a JSON object should be"},
		{"byte order mark", "\ufeff{}", 0, "byte order mark"},
		{"truncated in a key", `{"mod`, 5, "end of a string"},
		{"truncated behind a key", `{"model"`, 8, "a colon"},
		{"truncated in a value", `{"model":"m`, 11, "end of a string"},
		{"truncated behind a value", `{"model":"m"`, 12, "a comma or the closing }"},
		{"truncated in a long string", `{"a":"` + long, 206, "end of a string"},
		{"truncated in an escape", `{"a":"\`, 7, "it ends where an escape character should be"},
		{"truncated in a unicode escape", `{"a":"\u00`, 10, "it ends where a hexadecimal digit should be"},
		{"more than one value", `{} {}`, 3, "where the end should be"},
		{"NUL behind the end", "{}\x00", 2, "where the end should be"},
		{"NaN", `{"a":NaN}`, 5, "where a value should be"},
		{"Infinity", `{"a":-Infinity}`, 6, "where a digit should be"},
		{"cut literal", `{"a":tru}`, 8, "where the rest of true should be"},
		{"leading zero", `{"a":01}`, 6, "where a comma or the closing } should be"},
		{"no fraction", `{"a":1.}`, 7, "where a digit should be"},
		{"no exponent", `{"a":1e+}`, 8, "where a digit should be"},
		{"plus sign", `{"a":+1}`, 5, "where a value should be"},
		{"comma at the end", `{"a":1,}`, 7, "where a key in quotes should be"},
		{"comma at the end of an array", `{"a":[1,]}`, 8, "where a value should be"},
		{"key without quotes", `{a:1}`, 1, "where a key in quotes should be"},
		{"single quotes", `{'a':1}`, 1, "where a key in quotes should be"},
		{"comment", `{"a":1/*x*/}`, 6, "where a comma"},
		{"raw line feed in a string", "{\"a\":\"b\nc\"}", 7, "raw control character 0x0a"},
		{"raw tab in a long string", `{"a":"` + long + "\t" + long + `"}`, 206, "raw control character 0x09"},
		{"unknown escape", `{"a":"\x"}`, 7, "an escape character"},
		{"unknown escape in a long string", `{"a":"` + long + `\q` + long + `"}`, 207, "an escape character"},
		{"short unicode escape", `{"a":"\u12"}`, 10, "a hexadecimal digit"},
		{"bad digit in a unicode escape", `{"a":"` + long + `\u12g4"}`, 210, "a hexadecimal digit"},
		{"invalid UTF-8", "{\"a\":\"b\xffc\"}", 7, "invalid UTF-8"},
		{"invalid UTF-8 in a long string", `{"a":"` + long + "\xc3" + long + `"}`, 206, "invalid UTF-8"},
		{"invalid UTF-8 in a key", "{\"a\xff\":1}", 3, "invalid UTF-8"},
		{"invalid UTF-8 outside of strings", "{\"a\":1,\xff}", 7, "invalid UTF-8"},
		{"surrogate as raw UTF-8", "{\"a\":\"\xed\xa0\xbd\"}", 6, "invalid UTF-8"},
		{"repeated model", `{"model":"a","model":"b"}`, 13, `the key "model" appears more than once`},
		{"repeated model, escaped", `{"model":"a", "\u006dodel":"b"}`, 14, `the key "model" appears more than once`},
		{"repeated unknown key", `{"x":1,"x":1}`, 7, `the key "x" appears more than once`},
		{"repeated long key", `{"` + long + `":1,"` + long + `":1}`, 206, long[:60] + `" appears`},
		{"model of the wrong type", `{"model":["m"]}`, 9, "model must be a string"},
		{"stream of the wrong type", `{"stream":"true"}`, 10, "stream must be true or false"},
		{"too many keys", func() string {
			var b strings.Builder
			for i := range maxKeys + 1 {
				fmt.Fprintf(&b, `,"%04d":0`, i)
			}
			return "{" + b.String()[1:] + "}"
		}(), 1 + 9*maxKeys, "more than 1000 keys"},
		{"too many messages", `{"messages":[` + strings.Repeat("{},", maxMessages) + `{}]}`, 13 + 3*maxMessages + 2, "more than 100000 messages"},
		{"one level too deep", deep(maxDepth+1, "[", "]"), 5 + maxDepth - 1, "nested deeper than 512 levels"},
		{"objects too deep", deep(maxDepth+1, `{"b":`, "}"), 5 + 5*(maxDepth-1), "nested deeper than 512 levels"},
		{"absurdly deep", strings.Repeat("[", 10) + strings.Repeat(`{"a":[`, 100_000), 0, "where a JSON object should be"},
		{"absurdly deep in messages", `{"messages":` + strings.Repeat(`[{"content":`, 100_000), 12 + 12*255 + 1, "nested deeper"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Parse(RouteChat, []byte(tt.body))
			var bad *BadRequest
			if f != nil || !errors.As(err, &bad) {
				t.Fatalf("Parse = %v, %v; want a *BadRequest", f, err)
			}
			if !strings.Contains(bad.Message, tt.want) || bad.Offset != tt.offset {
				t.Errorf("got offset %d, %q; want offset %d, %q", bad.Offset, bad.Message, tt.offset, tt.want)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	for _, body := range []string{
		`{}`,
		" {\t\"a\" :\r\n1 } \n",
		`{"a":[],"b":{},"c":[[],{}]}`,
		`{"a":[0,-0,1E2,1.5e-7,12345678901234567890]}`,
		`{"a":"\ud83d"}`, // a lone surrogate, as JavaScript writes a string it cut
		`{"a":"\ud83d\ude00 \" \\ \/ \b\f\n\r\t"}`,
		`{"messages":[{"role":"user","content":"` + strings.Repeat(`\ud83d`, 50) + `"}]}`,
		`{"a":{"x":1,"x":2}}`, // repeated below the top: the engine takes the last
		`{"model":null,"stream":null,"messages":null,"stream_options":null}`,
		`{"Model":"m","model":"m"}`,
		"{\"a\":\"\x7f\"}",
		`{"messages":[1,"x",null,[{}],{"role":1,"content":{"text":[[]]}}],"tools":3,"metadata":[],"max_tokens":"many"}`,
		`{"a":[` + strings.Repeat(`[1],{"b":1},[],{},`, maxDepth) + `0]}`,
		`{"a":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`,
	} {
		if _, err := Parse(RouteChat, []byte(body)); err != nil {
			t.Errorf("Parse(%.60s): %v", body, err)
		}
	}
}

// ownRefusal reports whether we refuse a body that encoding/json takes for
// valid, by means that share nothing with the scanner.
func ownRefusal(body []byte) bool {
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) || !utf8.Valid(body) {
		return true
	}
	depth := 0
	seen := map[string]int{}
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil || top == nil {
		return true
	}
	d := json.NewDecoder(bytes.NewReader(body))
	expectKey := false
	var kinds []json.Delim
	for {
		token, err := d.Token()
		if err != nil {
			break
		}
		delim, isDelim := token.(json.Delim)
		switch {
		case isDelim && (delim == '{' || delim == '['):
			if depth++; depth > maxDepth {
				return true
			}
			kinds = append(kinds, delim)
			expectKey = delim == '{'
			continue
		case isDelim:
			depth--
			kinds = kinds[:len(kinds)-1]
		case expectKey:
			if depth == 1 {
				if seen[token.(string)]++; seen[token.(string)] > 1 {
					return true
				}
			}
			expectKey = false
			continue
		}
		expectKey = len(kinds) > 0 && kinds[len(kinds)-1] == '{'
	}
	if v := bytes.TrimSpace(top["model"]); len(v) > 0 && v[0] != '"' && v[0] != 'n' {
		return true
	}
	if v := bytes.TrimSpace(top["stream"]); len(v) > 0 && v[0] != 't' && v[0] != 'f' && v[0] != 'n' {
		return true
	}
	return false
}

// FuzzParse compares what we accept with encoding/json, and checks that the same
// body in other escapes and white space has the same facts.
func FuzzParse(f *testing.F) {
	for _, c := range conversations(f) {
		if len(c.Bodies[0]) < 6_000 {
			f.Add([]byte(c.Bodies[0]))
		}
	}
	for _, seed := range []string{
		`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`,
		`{"a":"\ud83d\ude00\n","b":[1e5,-0.1,null,true,false,{}],"a":2}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a<system-reminder>b</system-reminder>c"}]}]}`,
		`{"x":"` + strings.Repeat(`abc\n\"\\`, 40) + `"}`,
		"{\"x\":\"" + strings.Repeat("größe ", 30) + "\"}",
		"\ufeff{}", `[]`, `{"a":NaN}`, "{\"a\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		valid := json.Valid(body) && !ownRefusal(body)
		for _, route := range []Route{RouteChat, RouteMessages, RouteResponses, RouteCompletions} {
			facts, err := Parse(route, body)
			if (err == nil) != valid {
				t.Fatalf("%v: Parse says %v, encoding/json says %v: %q", route, err, valid, body)
			}
			if err != nil {
				var bad *BadRequest
				if !errors.As(err, &bad) || bad.Offset < 0 || bad.Offset > len(body) {
					t.Fatalf("%v: %#v", route, err)
				}
				continue
			}
			escaped := escapeAll(t, body)
			other, err := Parse(route, escaped)
			if err != nil {
				t.Fatalf("%v, after escaping all of %q", err, body)
			}
			opt := cmp.Options{cmpopts.IgnoreFields(Facts{}, "layout", "TextBytes", "ToolsSent", "SystemTexts", "ToolsTexts", "texts"), cmpopts.IgnoreFields(Sent{}, "At", "texts")}
			if diff := cmp.Diff(facts, other, opt); diff != "" {
				t.Fatalf("escapes change the facts of %q:\n%s", body, diff)
			}
			if diff := cmp.Diff(texts(t, facts, body), texts(t, other, escaped)); diff != "" {
				t.Fatalf("escapes change the texts of %q:\n%s", body, diff)
			}
		}
	})
}

type conversation struct {
	Client, Name, Path string
	Bodies             []json.RawMessage
}

func conversations(tb testing.TB) []conversation {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "conversations.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var cs []conversation
	if err := json.Unmarshal(b, &cs); err != nil {
		tb.Fatal(err)
	}
	return cs
}

// escapeAll writes a valid body anew with each character of each string as an
// escape, and with white space between all tokens.
func escapeAll(t *testing.T, body []byte) []byte {
	t.Helper()
	type level struct {
		object bool
		n      int // keys and values so far
	}
	var out []byte
	levels := []level{{}}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		top := &levels[len(levels)-1]
		if token == json.Delim('}') || token == json.Delim(']') {
			out = append(out, token.(json.Delim).String()...)
			levels = levels[:len(levels)-1]
			continue
		}
		switch {
		case top.object && top.n%2 == 1:
			out = append(out, " :\t"...)
		case top.n > 0:
			out = append(out, "\r\n, "...)
		}
		top.n++
		switch v := token.(type) {
		case json.Delim:
			out = append(out, v.String()+" "...)
			levels = append(levels, level{object: v == '{'})
		case string:
			out = append(out, '"')
			for _, unit := range utf16.Encode([]rune(v)) {
				out = fmt.Appendf(out, `\u%04X`, unit)
			}
			out = append(out, '"')
		case json.Number:
			out = append(out, v...)
		default:
			out = append(out, marshal(v)...)
		}
	}
}
