package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// object is a JSON object that keeps the order of its keys: the recorded engine
// writes them in the order of its response models, and a client that compares
// bytes may rely on it.
type object []field

type field struct {
	key   string
	value any
}

// list is a JSON array.
type list []any

// with returns o followed by further fields; o itself stays as it is.
func (o object) with(more ...field) object {
	return append(o[:len(o):len(o)], more...)
}

// spacing is what stands between the members of a composite and after a key.
type spacing struct{ comma, colon string }

var (
	// compact is how the engine's response models print.
	compact = spacing{comma: ",", colon: ":"}
	// spaced is how Python's json.dumps prints: chat templates and some error
	// frames of the engine are made with it.
	spaced = spacing{comma: ", ", colon: ": "}
)

// encode returns v in compact form. v is nil, a bool, an int, an int64, a
// float64, a string, a json.RawMessage (copied), a json.Number, an object or a
// list; anything else is a mistake in this package.
func encode(v any) []byte { return appendJSON(nil, v, compact) }

func appendJSON(b []byte, v any, s spacing) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return append(b, pythonFloat(v)...)
	case json.Number:
		return append(b, v...)
	case string:
		return appendString(b, v)
	case json.RawMessage:
		return append(b, v...)
	case list:
		b = append(b, '[')
		for i, member := range v {
			if i > 0 {
				b = append(b, s.comma...)
			}
			b = appendJSON(b, member, s)
		}
		return append(b, ']')
	case object:
		b = append(b, '{')
		for i, f := range v {
			if i > 0 {
				b = append(b, s.comma...)
			}
			b = appendString(b, f.key)
			b = append(b, s.colon...)
			b = appendJSON(b, f.value, s)
		}
		return append(b, '}')
	}
	panic(fmt.Sprintf("server: %T has no JSON form", v))
}

// appendString quotes s as the engine does: only quotes, backslashes and control
// characters are escaped, everything else stands as UTF-8.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c == '\n':
				b = append(b, '\\', 'n')
			case c == '\r':
				b = append(b, '\\', 'r')
			case c == '\t':
				b = append(b, '\\', 't')
			case c == '\b':
				b = append(b, '\\', 'b')
			case c == '\f':
				b = append(b, '\\', 'f')
			case c < 0x20:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			default:
				b = append(b, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		b = utf8.AppendRune(b, r)
		i += size
	}
	return append(b, '"')
}

// pythonFloat prints f as Python's repr does: always with a point or an exponent.
func pythonFloat(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if abs := max(f, -f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	if !strings.Contains(s, ".") && f == f && f-f == 0 { // not for NaN and infinities
		s += ".0"
	}
	return s
}

// parseOrdered reads one JSON value that is already known to be valid, keeping
// the order of the keys and the spelling of the numbers.
func parseOrdered(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return parseValue(d)
}

func parseValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		members := list{}
		for d.More() {
			member, err := parseValue(d)
			if err != nil {
				return nil, err
			}
			members = append(members, member)
		}
		_, err := d.Token()
		return members, err
	case json.Delim('{'):
		members := object{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			member, err := parseValue(d)
			if err != nil {
				return nil, err
			}
			members = append(members, field{key.(string), member})
		}
		_, err := d.Token()
		return members, err
	}
	return token, nil // a string, a json.Number, a bool or nil
}

// pythonJSON spells raw as Python's json.dumps(ensure_ascii=False) would, which is what
// the chat template does with tools and with the arguments of past tool calls.
// Text that is not JSON is returned as it is.
func pythonJSON(raw []byte) string {
	if !json.Valid(raw) {
		return string(raw)
	}
	v, err := parseOrdered(raw)
	if err != nil {
		return string(raw)
	}
	return string(appendJSON(nil, v, spaced))
}
