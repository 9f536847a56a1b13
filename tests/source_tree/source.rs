//! Rust files: their tokens, comments and syntax tree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::fault::Fault;

pub struct Source {
    /// From the repository's root, with slashes.
    pub path: String,
    pub text: String,
    pub file: syn::File,
    /// In order, without doc comments. A group is its two delimiters with its tokens between them.
    pub tokens: Vec<Token>,
    /// Line by line, docs among them.
    pub comments: Vec<Comment>,
    /// Lines of items under `cfg(test)`.
    tests: Vec<Range<usize>>,
}

pub struct Token {
    pub text: String,
    /// Within the source's text.
    pub range: Range<usize>,
    pub line: usize,
    /// What the token stands in: `{`, `(`, `[`, or a space.
    pub inside: char,
    /// In how many groups.
    pub depth: usize,
}

pub struct Comment {
    pub line: usize,
    pub text: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let stream: TokenStream = text.parse().unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut reader = Reader {
            text,
            tokens: Vec::new(),
            depth: 0,
        };
        reader.stream(stream, ' ');
        let tokens = reader.tokens;
        let mut gaps = Vec::new();
        let mut end = 0;
        for token in &tokens {
            gaps.push(end..token.range.start);
            end = token.range.end;
        }
        gaps.push(end..text.len());
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut tests = Tests::default();
        tests.visit_file(&file);
        Self {
            path: path.to_owned(),
            comments: comments(text, gaps),
            text: text.to_owned(),
            tokens,
            tests: tests.0,
            file,
        }
    }

    /// The tokens outside of items for tests.
    pub fn without_tests(&self) -> impl Iterator<Item = (usize, &Token)> {
        let tokens = self.tokens.iter().enumerate();
        tokens.filter(|(_, token)| !self.in_test(token.line))
    }

    pub fn in_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    pub fn is(&self, i: usize, text: &str) -> bool {
        self.tokens.get(i).is_some_and(|token| token.text == text)
    }

    /// The token that closes the group which begins with token `open`, or that one if none does.
    pub fn closing(&self, open: usize) -> usize {
        let depth = self.tokens[open].depth;
        let close = match self.tokens[open].text.as_str() {
            "{" => "}",
            "(" => ")",
            "[" => "]",
            _ => return open,
        };
        let mut rest = self.tokens.iter().enumerate().skip(open);
        let closing = rest.find(|(_, token)| token.text == close && token.depth == depth);
        closing.map_or(open, |(i, _)| i)
    }

    pub fn fault(&self, line: usize, what: impl Into<String>) -> Fault {
        Fault::new(&self.path, line, what)
    }
}

struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    depth: usize,
}

impl Reader<'_> {
    fn stream(&mut self, stream: TokenStream, inside: char) {
        let mut trees = stream.into_iter().peekable();
        while let Some(tree) = trees.next() {
            let range = tree.span().byte_range();
            // A doc comment is `#[doc = "..."]`, all of it where the comment stands.
            if ["//", "/*"]
                .iter()
                .any(|comment| self.text[range.clone()].starts_with(comment))
            {
                continue;
            }
            match tree {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Brace => ('{', '}'),
                        Delimiter::Parenthesis => ('(', ')'),
                        Delimiter::Bracket => ('[', ']'),
                        Delimiter::None => (' ', ' '),
                    };
                    self.push(open.to_string(), group.span_open(), inside);
                    self.depth += 1;
                    self.stream(group.stream(), open);
                    self.depth -= 1;
                    self.push(close.to_string(), group.span_close(), inside);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    let double = punct.spacing() == Spacing::Joint
                        && matches!(trees.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                    let mut span = punct.span();
                    let mut text = ":";
                    if let Some(second) = trees.next_if(|_| double) {
                        span = span.join(second.span()).unwrap_or(span);
                        text = "::";
                    }
                    self.push(text.to_owned(), span, inside);
                }
                tree => self.push(tree.to_string(), tree.span(), inside),
            }
        }
    }

    fn push(&mut self, text: String, span: Span, inside: char) {
        self.tokens.push(Token {
            text,
            range: span.byte_range(),
            line: span.start().line,
            inside,
            depth: self.depth,
        });
    }
}

/// What isn't blank between tokens, by lines.
fn comments(text: &str, gaps: Vec<Range<usize>>) -> Vec<Comment> {
    let mut comments = Vec::new();
    let (mut line, mut counted) = (1, 0);
    for gap in gaps {
        line += text[counted..gap.start].matches('\n').count();
        counted = gap.start;
        for (i, text) in text[gap].lines().enumerate() {
            if !text.trim().is_empty() {
                comments.push(Comment {
                    line: line + i,
                    text: text.trim().to_owned(),
                });
            }
        }
    }
    comments
}

/// Lines of items under `#[cfg(test)]` and the like.
#[derive(Default)]
struct Tests(Vec<Range<usize>>);

/// Whether attributes leave an item to tests.
pub fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let words = idents(list.tokens.clone());
        attribute.path().is_ident("cfg")
            && words.iter().any(|word| word == "test")
            && !words.iter().any(|word| word == "not")
    })
}

pub fn idents(tokens: TokenStream) -> Vec<String> {
    let idents = tokens.into_iter().flat_map(|tree| match tree {
        TokenTree::Ident(ident) => vec![ident.to_string()],
        TokenTree::Group(group) => idents(group.stream()),
        _ => Vec::new(),
    });
    idents.collect()
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if for_tests(item_attributes(item)) {
            let span = item.span();
            self.0.push(span.start().line..span.end().line + 1);
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if for_tests(&function.attrs) {
            let span = function.span();
            self.0.push(span.start().line..span.end().line + 1);
        }
    }
}

pub fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item as I;
    match item {
        I::Const(item) => &item.attrs,
        I::Enum(item) => &item.attrs,
        I::ExternCrate(item) => &item.attrs,
        I::Fn(item) => &item.attrs,
        I::ForeignMod(item) => &item.attrs,
        I::Impl(item) => &item.attrs,
        I::Macro(item) => &item.attrs,
        I::Mod(item) => &item.attrs,
        I::Static(item) => &item.attrs,
        I::Struct(item) => &item.attrs,
        I::Trait(item) => &item.attrs,
        I::Type(item) => &item.attrs,
        I::Union(item) => &item.attrs,
        I::Use(item) => &item.attrs,
        _ => &[],
    }
}

// -------------------------------------------------------------------------------------------------
// Files
// -------------------------------------------------------------------------------------------------

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository, read once in a test.
pub fn source(path: &str) -> Option<Rc<Source>> {
    thread_local! {
        static READ: RefCell<BTreeMap<String, Rc<Source>>> = RefCell::default();
    }
    let cached = READ.with_borrow(|read| read.get(path).cloned());
    cached.or_else(|| {
        let text = fs::read_to_string(root().join(path)).ok()?;
        let source = Rc::new(Source::new(path, &text));
        READ.with_borrow_mut(|read| read.insert(path.to_owned(), Rc::clone(&source)));
        Some(source)
    })
}

/// Paths of the repository's files that pass, in order.
pub fn files(pass: impl Fn(&str) -> bool) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if pass(&relative(&path)) {
                files.push(relative(&path));
            }
        }
    }
    files.sort();
    files
}

/// The repository's Rust files whose path passes.
pub fn sources(pass: impl Fn(&str) -> bool) -> Vec<Rc<Source>> {
    let files = files(|path| path.ends_with(".rs") && pass(path));
    let sources: Vec<_> = files.iter().filter_map(|path| source(path)).collect();
    assert!(!sources.is_empty());
    sources
}

/// From the repository's root, with slashes.
pub fn relative(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    path.to_str().unwrap().replace('\\', "/")
}

pub fn everywhere() -> Vec<Rc<Source>> {
    sources(|_| true)
}
