package config

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds a configuration file; one of this size is not a configuration.
const maxFile = 64 << 10

// Load reads a file. The error is a Problems when the file could be read; it
// says nothing about what Validate checks.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, text)
}

// Parse reads the text of a file over the defaults; name stands in messages.
// Unknown and repeated keys are errors. The error is a Problems with everything
// that is wrong in form.
func Parse(name string, text []byte) (*Config, error) {
	c := Default()
	c.source = source{name: name, places: map[string]place{}}
	d := decoder{source: &c.source}
	if err := d.decode(text, c); err != nil {
		return nil, err
	}
	c.Fill()
	return c, nil
}

// Print is the effective configuration as a file, with secrets masked.
func (c *Config) Print() ([]byte, error) {
	text, err := yaml.MarshalWithOptions(c, yaml.Indent(2), yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return text, nil
}

// decoder fills structs from a syntax tree. It is ours, and not the library's,
// so that every message has a place and speaks of the file instead of Go types,
// and so that all mistakes are told at once.
type decoder struct {
	source   *source
	problems Problems
}

func (d *decoder) decode(text []byte, into *Config) error {
	if len(text) > maxFile {
		return Problems{d.source.problem(place{}, "", "the file has %d bytes; at most %d are read", len(text), maxFile)}
	}
	text = []byte(strings.TrimPrefix(string(text), "\uFEFF"))
	d.source.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	for i, line := range d.source.lines {
		if !utf8.ValidString(line) {
			d.source.lines[i] = strings.ToValidUTF8(line, "\uFFFD")
			d.problems = append(d.problems, d.source.problem(place{i + 1, 1}, "", "the line is not UTF-8"))
		}
		// The parser reports a tab at odd places or takes it for text.
		if j := len(line) - len(strings.TrimLeft(line, " ")); j < len(line) && line[j] == '\t' && strings.TrimSpace(line) != "" {
			d.problems = append(d.problems, d.source.problem(place{i + 1, j + 1}, "", "a tab cannot indent; write spaces"))
		}
	}
	if err := d.problems.err(); err != nil {
		return err
	}
	file, err := parse(text)
	if err != nil {
		return Problems{d.syntax(err)}
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.NullType {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
	case 1:
		d.value(bodies[0], reflect.ValueOf(into).Elem(), "")
	default:
		d.report(bodies[1], "", "the file has a second document; write one")
	}
	return d.problems.err()
}

// parse turns a panic of the library into an error: a file must never end the
// process.
func parse(text []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is not YAML that can be read: %v", r)
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if deep := tooDeep(tokens); deep != nil {
		return nil, &yaml.SyntaxError{Message: "nested too deep", Token: deep}
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// maxDepth bounds nesting within brackets and within one line. The parser's
// memory grows with the square of the depth. Nesting over lines needs ever
// deeper indents, so that maxFile bounds it.
const maxDepth = 64

// tooDeep is the first token that is nested too deep, or nil.
func tooDeep(tokens token.Tokens) *token.Token {
	brackets, inLine, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position != nil && t.Position.Line != line {
			inLine, line = 0, t.Position.Line
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			inLine++
		}
		if max(brackets, inLine) > maxDepth {
			return t
		}
	}
	return nil
}

// syntax describes an error of the parser.
func (d *decoder) syntax(err error) Problem {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
		at := e.GetToken().Position
		return d.source.problem(place{at.Line, at.Column}, "", "%s", e.GetMessage())
	}
	return d.source.problem(place{}, "", "%s", err)
}

func (d *decoder) report(n ast.Node, path, format string, args ...any) {
	d.problems = append(d.problems, d.source.problem(placeOf(n), path, format, args...))
}

// placeOf is where a node begins: a mapping begins at its first key.
func placeOf(n ast.Node) place {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0]
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		n = m.Key
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{t.Position.Line, t.Position.Column}
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// value fills v from a node. An empty value leaves the default.
func (d *decoder) value(n ast.Node, v reflect.Value, path string) {
	d.source.places[path] = placeOf(n)
	switch n.(type) {
	case *ast.NullNode:
		return
	case *ast.AnchorNode, *ast.AliasNode:
		d.report(n, path, "anchors and aliases of YAML are not read here; write the value itself, in quotes if it begins with & or *")
		return
	case *ast.TagNode:
		d.report(n, path, "tags of YAML are not read here; write the value itself, in quotes if it begins with !")
		return
	}
	switch {
	case v.Addr().Type().Implements(textType):
		if s, ok := d.text(n, path); ok {
			if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
				d.report(n, path, "%s", err)
			}
		}
	case v.Kind() == reflect.Struct:
		d.mapping(n, v, path)
	case v.Kind() == reflect.Slice:
		d.sequence(n, v, path)
	case v.Kind() == reflect.String:
		if s, ok := d.text(n, path); ok {
			v.SetString(s)
		}
	case v.Kind() == reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.report(n, path, "%s where true or false belongs", describe(n))
			return
		}
		v.SetBool(b.Value)
	case v.Kind() == reflect.Int:
		i, ok := n.(*ast.IntegerNode)
		if !ok {
			d.report(n, path, "%s where a whole number belongs", describe(n))
			return
		}
		number, err := strconv.ParseInt(strings.ReplaceAll(i.GetToken().Value, "_", ""), 10, 32)
		if err != nil {
			d.report(n, path, "%s is not a whole number up to %d", clip(i.GetToken().Value), 1<<31-1)
			return
		}
		v.SetInt(number)
	case v.Kind() == reflect.Float64:
		number, err := strconv.ParseFloat(n.GetToken().Value, 64)
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
		default:
			err = strconv.ErrSyntax
		}
		if err != nil {
			d.report(n, path, "%s where a number belongs", describe(n))
			return
		}
		v.SetFloat(number)
	}
}

// text is the source text of a single value. Numbers count as text, so that a
// model may be named 7; a bare true does not, since YAML readers disagree on
// which words mean it.
func (d *decoder) text(n ast.Node, path string) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSuffix(n.Value.Value, "\n"), true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	case *ast.BoolNode:
		d.report(n, path, "%s where text belongs; put it in quotes", describe(n))
	default:
		d.report(n, path, "%s where text belongs", describe(n))
	}
	return "", false
}

// mapping fills the fields of a struct. Keys are the fields' yaml tags.
func (d *decoder) mapping(n ast.Node, v reflect.Value, path string) {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		d.report(n, path, "%s where keys belong: %s", describe(n), strings.Join(keys(v.Type()), ", "))
		return
	}
	seen := map[string]place{}
	for _, e := range entries {
		key := e.Key.GetToken().Value
		at := place{e.Key.GetToken().Position.Line, e.Key.GetToken().Position.Column}
		if first, twice := seen[key]; twice {
			d.report(e, path, "the key %q stands here a second time; the first is in line %d", clip(key), first.line)
			continue
		}
		seen[key] = at
		allowed := keys(v.Type())
		field := slices.Index(allowed, key)
		if field < 0 {
			d.report(e, path, "unknown key %q; %s", clip(key), oneOf(key, allowed))
			continue
		}
		d.value(e.Value, v.Field(field), join(path, key))
		if _, empty := e.Value.(*ast.NullNode); empty {
			d.source.places[join(path, key)] = at
		}
	}
}

func (d *decoder) sequence(n ast.Node, v reflect.Value, path string) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.report(n, path, "%s where a list belongs; begin each entry with \"- \" on a line of its own", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values)))
	for i, e := range s.Values {
		entry := fmt.Sprintf("%s[%d]", path, i)
		if _, empty := e.(*ast.NullNode); empty {
			d.report(n, entry, "the entry is empty")
			continue
		}
		d.value(e, v.Index(i), entry)
	}
}

// keys lists the yaml names of a struct's fields in their order; a field's
// place in the list is its index, so the tagged fields come first in a struct.
func keys(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		if tag, ok := f.Tag.Lookup("yaml"); ok {
			name, _, _ := strings.Cut(tag, ",")
			names = append(names, name)
		}
	}
	return names
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// describe names what stands in the file, for "X where Y belongs".
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys stand"
	case *ast.SequenceNode:
		return "a list stands"
	case *ast.BoolNode:
		return n.GetToken().Value + " (a truth value) stands"
	case *ast.IntegerNode, *ast.FloatNode:
		return "the number " + clip(n.GetToken().Value) + " stands"
	case *ast.StringNode:
		return fmt.Sprintf("the text %q stands", clip(n.Value))
	case *ast.LiteralNode:
		return "a text block stands"
	}
	return "something else stands"
}
