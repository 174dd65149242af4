//! Arithmetic expressions over measured quantities: `(a.total - b.total) / 1024`, `x <= 1.3 * y`, `abs(ln(x / 2))`.
//!
//! The functions are `abs` and `ln`. Names consist of letters, digits, `_`, `.` and `-`, and begin with a letter. A minus sign between two names
//! therefore needs spaces around it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// An arithmetic expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression(Node);

/// Two expressions compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Relation {
    text: String,
    /// The left side; reports show its value as ours.
    pub(crate) left: Expression,
    comparison: Comparison,
    /// The right side.
    pub(crate) right: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Number(f64),
    Name(String),
    Binary(char, Box<Node>, Box<Node>),
    Negative(Box<Node>),
    Call(Function, Box<Node>),
}

/// A function of one number, written `abs(x)` or `ln(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Absolute,
    Logarithm,
}

impl Function {
    fn named(name: &str) -> Option<Function> {
        match name {
            "abs" => Some(Function::Absolute),
            "ln" => Some(Function::Logarithm),
            _ => None,
        }
    }

    fn of(self, value: f64) -> f64 {
        match self {
            Function::Absolute => value.abs(),
            Function::Logarithm => libm::log(value),
        }
    }
}

/// Why a text is not a valid expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpressionError(String);

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Message about a quantity that was not measured.
pub(crate) type Missing = String;

impl Expression {
    /// The names of the quantities in the expression.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.0.names(&mut names);
        names
    }

    /// The value of an expression without quantities.
    pub(crate) fn constant(&self) -> Option<f64> {
        self.names().is_empty().then(|| self.0.evaluate(&|_| f64::NAN))
    }

    /// Evaluates the expression once per seed. Quantities with one value apply to every seed; all others must have
    /// equally many values.
    pub(crate) fn evaluate(&self, values: &BTreeMap<String, Vec<f64>>) -> Result<Vec<f64>, Missing> {
        let seeds = seeds(&self.names(), values)?;
        Ok((0..seeds).map(|seed| self.of_seed(values, seed)).collect())
    }

    /// The value of a seed of [`seeds`].
    fn of_seed(&self, values: &BTreeMap<String, Vec<f64>>, seed: usize) -> f64 {
        self.0.evaluate(&|name| {
            let all = &values[name];
            if all.len() == 1 { all[0] } else { all[seed] }
        })
    }
}

/// The number of seeds that quantities have values of.
fn seeds(names: &[&str], values: &BTreeMap<String, Vec<f64>>) -> Result<usize, Missing> {
    let mut seeds = 1;
    for name in names {
        match values.get(*name).map(Vec::len) {
            None | Some(0) => return Err(format!("`{name}` was not measured")),
            Some(1) => {}
            Some(n) if seeds == 1 || seeds == n => seeds = n,
            Some(n) => return Err(format!("`{name}` has {n} values, others have {seeds}")),
        }
    }
    Ok(seeds)
}

impl Relation {
    /// The left and the right side, once per seed.
    pub(crate) fn sides(&self, values: &BTreeMap<String, Vec<f64>>) -> Result<Vec<[f64; 2]>, Missing> {
        let seeds = seeds(&[self.left.names(), self.right.names()].concat(), values)?;
        let sides = |seed| [&self.left, &self.right].map(|side| side.of_seed(values, seed));
        Ok((0..seeds).map(sides).collect())
    }

    /// Whether the relation holds between two numbers.
    pub(crate) fn holds(&self, left: f64, right: f64) -> bool {
        match self.comparison {
            Comparison::Less => left < right,
            Comparison::LessOrEqual => left <= right,
            Comparison::Greater => left > right,
            Comparison::GreaterOrEqual => left >= right,
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Node {
    fn names<'a>(&'a self, into: &mut Vec<&'a str>) {
        match self {
            Node::Number(_) => {}
            Node::Name(name) => into.push(name),
            Node::Negative(inner) | Node::Call(_, inner) => inner.names(into),
            Node::Binary(_, a, b) => {
                a.names(into);
                b.names(into);
            }
        }
    }

    fn evaluate(&self, value: &dyn Fn(&str) -> f64) -> f64 {
        match self {
            Node::Number(number) => *number,
            Node::Name(name) => value(name),
            Node::Negative(inner) => -inner.evaluate(value),
            Node::Call(function, inner) => function.of(inner.evaluate(value)),
            Node::Binary(operator, a, b) => {
                let (a, b) = (a.evaluate(value), b.evaluate(value));
                match operator {
                    '+' => a + b,
                    '-' => a - b,
                    '*' => a * b,
                    _ => a / b,
                }
            }
        }
    }
}

impl FromStr for Expression {
    type Err = ExpressionError;
    fn from_str(text: &str) -> Result<Expression, ExpressionError> {
        let mut reader = Reader { rest: text, depth: 0 };
        let node = reader.sum()?;
        reader.end()?;
        Ok(Expression(node))
    }
}

impl FromStr for Relation {
    type Err = ExpressionError;
    fn from_str(text: &str) -> Result<Relation, ExpressionError> {
        let at = text
            .find(['<', '>'])
            .ok_or_else(|| ExpressionError("has no comparison (<, <=, >, >=)".into()))?;
        let (left, rest) = text.split_at(at);
        let (comparison, right) = match (rest.as_bytes()[0], rest[1..].strip_prefix('=')) {
            (b'<', Some(right)) => (Comparison::LessOrEqual, right),
            (b'<', None) => (Comparison::Less, &rest[1..]),
            (_, Some(right)) => (Comparison::GreaterOrEqual, right),
            (_, None) => (Comparison::Greater, &rest[1..]),
        };
        Ok(Relation { text: text.trim().to_owned(), left: left.parse()?, comparison, right: right.parse()? })
    }
}

/// A recursive-descent reader; depth is bounded, so that noise cannot exhaust the stack.
struct Reader<'a> {
    rest: &'a str,
    depth: u32,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: &[char]) -> Option<char> {
        let next = self.peek().filter(|c| wanted.contains(c))?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn end(&mut self) -> Result<(), ExpressionError> {
        match self.peek() {
            None => Ok(()),
            Some(c) => Err(ExpressionError(format!("`{}` is not expected here", c.escape_debug()))),
        }
    }

    fn sum(&mut self) -> Result<Node, ExpressionError> {
        let mut node = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            node = Node::Binary(operator, Box::new(node), Box::new(self.product()?));
        }
        Ok(node)
    }

    fn product(&mut self) -> Result<Node, ExpressionError> {
        let mut node = self.factor()?;
        while let Some(operator) = self.take(&['*', '/']) {
            node = Node::Binary(operator, Box::new(node), Box::new(self.factor()?));
        }
        Ok(node)
    }

    fn factor(&mut self) -> Result<Node, ExpressionError> {
        self.depth += 1;
        if self.depth > 200 {
            return Err(ExpressionError("the expression has more than 200 operands or levels".into()));
        }
        let node = if self.take(&['-']).is_some() {
            Node::Negative(Box::new(self.factor()?))
        } else if self.take(&['(']).is_some() {
            self.closed()?
        } else {
            self.atom()?
        };
        Ok(node)
    }

    /// The rest of an expression in parentheses.
    fn closed(&mut self) -> Result<Node, ExpressionError> {
        let inner = self.sum()?;
        self.take(&[')']).ok_or_else(|| ExpressionError("a parenthesis is not closed".into()))?;
        Ok(inner)
    }

    fn atom(&mut self) -> Result<Node, ExpressionError> {
        let first = self.peek().ok_or_else(|| ExpressionError("the expression is incomplete".into()))?;
        let name = first.is_ascii_alphabetic();
        let more = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.') || (name && c == '-');
        let end = self.rest.find(|c| !more(c)).unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        self.rest = &self.rest[end..];
        if name && self.take(&['(']).is_some() {
            let function = Function::named(word).ok_or_else(|| {
                ExpressionError(format!("there is no function `{word}`; use `abs` or `ln`"))
            })?;
            return Ok(Node::Call(function, Box::new(self.closed()?)));
        }
        if name {
            return Ok(Node::Name(word.to_owned()));
        }
        match word.parse() {
            Ok(number) => Ok(Node::Number(number)),
            Err(_) => {
                Err(ExpressionError(format!("`{}` does not start a number or name", first.escape_debug())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> BTreeMap<String, Vec<f64>> {
        [("a.b", vec![1.0, 2.0]), ("x-1", vec![10.0]), ("c", vec![1.0, 2.0, 3.0])]
            .map(|(name, values)| (name.to_owned(), values))
            .into()
    }

    #[test]
    fn arithmetic_is_per_seed() {
        let evaluate = |text: &str| text.parse::<Expression>().unwrap().evaluate(&values());
        assert_eq!(evaluate("a.b"), Ok(vec![1.0, 2.0]));
        assert_eq!(evaluate("x-1 - a.b * 2 / 4"), Ok(vec![9.5, 9.0]));
        assert_eq!(evaluate("-(a.b + 1)"), Ok(vec![-2.0, -3.0]));
        assert_eq!(evaluate("2e3"), Ok(vec![2000.0]));
        assert_eq!(evaluate("abs(ln(a.b / 1)) + -abs( 0 - a.b)"), Ok(vec![-1.0, libm::log(2.0) - 2.0]));
        for bad in ["exp(a.b)", "ln", "abs(a.b", "ln()", "abs a.b"] {
            // `ln` without parentheses is a quantity, which nothing measures.
            assert!(bad.parse::<Expression>().is_err() || evaluate(bad).is_err(), "{bad}");
        }
        assert!(evaluate("a.b + c").unwrap_err().contains("values"));
        assert!(evaluate("nothing").unwrap_err().contains("not measured"));
    }

    #[test]
    fn relations_compare() {
        let relation: Relation = "a.b <= 1.3 * x-1".parse().unwrap();
        assert!(relation.holds(13.0, 13.0) && !relation.holds(13.1, 13.0));
        assert_eq!(relation.to_string(), "a.b <= 1.3 * x-1");
        for bad in ["a", "a <", "<= 3", "a == b", "(a < 3", "a < b < c"] {
            assert!(bad.parse::<Relation>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_refused_or_read_but_never_panics(text in "([-+*/()a1. <>=µ]|abs\\(|ln\\(){0,200}") {
            let _ = text.parse::<Expression>();
            let _ = text.parse::<Relation>();
        }
    }
}
