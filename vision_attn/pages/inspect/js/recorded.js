// Where the page's items come from: they lie in it, as Python recorded them.

const openSource = ({ items }) => ({ items, open: (at) => Item.open(items[at]) });
