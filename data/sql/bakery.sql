-- A bakery: its suppliers, what goes into which product, and what was sold in a week.

CREATE TABLE supplier (
    supplier_id INTEGER PRIMARY KEY,
    name TEXT,
    city TEXT
);
INSERT INTO supplier VALUES
    (1, 'Mill & Sons', 'Leeds'),
    (2, 'Green Valley', 'York'),
    (3, 'Dairy North', 'Leeds'),
    (4, 'Sugar House', 'Hull'),
    (5, 'Orchard Direct', 'York'),
    (6, 'Spice Route', 'London');

CREATE TABLE ingredient (
    ingredient_id INTEGER PRIMARY KEY,
    name TEXT,
    supplier_id INTEGER REFERENCES supplier (supplier_id),
    price_per_kg REAL,
    stock_kg REAL
);
INSERT INTO ingredient VALUES
    (1, 'wheat flour', 1, 0.9, 240.0),
    (2, 'rye flour', 1, 1.1, 85.0),
    (3, 'butter', 3, 7.5, 40.0),
    (4, 'milk', 3, 1.2, 120.0),
    (5, 'sugar', 4, 1.0, 150.0),
    (6, 'apples', 5, 2.4, 60.0),
    (7, 'cinnamon', 6, 18.0, 3.5),
    (8, 'eggs', 2, 3.6, 55.0),
    (9, 'walnuts', 2, 11.5, 14.0),
    (10, 'chocolate', 4, 9.8, 22.0),
    (11, 'yeast', 1, 4.2, 6.0),
    (12, 'vanilla', 6, 95.0, 0.8),
    (13, 'salt', 1, 0.5, 30.0),
    (14, 'cherries', 5, 5.2, 18.0);

CREATE TABLE product (
    product_id INTEGER PRIMARY KEY,
    name TEXT,
    category TEXT,
    price REAL,
    calories INTEGER
);
INSERT INTO product VALUES
    (1, 'white loaf', 'bread', 2.6, 240),
    (2, 'rye loaf', 'bread', 3.4, 210),
    (3, 'apple tart', 'cake', 4.2, 330),
    (4, 'croissant', 'pastry', 1.9, 270),
    (5, 'cinnamon roll', 'pastry', 2.4, 350),
    (6, 'walnut bread', 'bread', 4.1, 290),
    (7, 'chocolate cake', 'cake', 5.5, 450),
    (8, 'cherry pie', 'cake', 4.8, 380),
    (9, 'milk bun', 'pastry', 1.2, 180),
    (10, 'butter biscuit', 'biscuit', 0.8, 120),
    (11, 'chocolate biscuit', 'biscuit', 1.1, 150),
    (12, 'vanilla slice', 'cake', 3.9, 410);

CREATE TABLE recipe (
    product_id INTEGER REFERENCES product (product_id),
    ingredient_id INTEGER REFERENCES ingredient (ingredient_id),
    grams INTEGER,
    PRIMARY KEY (product_id, ingredient_id)
);
INSERT INTO recipe VALUES
    (1, 1, 420),
    (1, 11, 8),
    (1, 13, 9),
    (2, 2, 400),
    (2, 1, 60),
    (2, 11, 10),
    (2, 13, 10),
    (3, 1, 120),
    (3, 3, 70),
    (3, 6, 200),
    (3, 5, 40),
    (3, 7, 2),
    (4, 1, 55),
    (4, 3, 30),
    (4, 4, 20),
    (5, 1, 70),
    (5, 3, 20),
    (5, 5, 25),
    (5, 7, 3),
    (5, 4, 30),
    (6, 1, 300),
    (6, 9, 80),
    (6, 11, 8),
    (6, 13, 7),
    (7, 1, 90),
    (7, 10, 110),
    (7, 3, 60),
    (7, 8, 90),
    (7, 5, 85),
    (8, 1, 110),
    (8, 3, 65),
    (8, 14, 180),
    (8, 5, 50),
    (9, 1, 50),
    (9, 4, 35),
    (9, 5, 8),
    (9, 11, 2),
    (10, 1, 20),
    (10, 3, 12),
    (10, 5, 9),
    (11, 1, 18),
    (11, 10, 10),
    (11, 3, 11),
    (11, 5, 8),
    (12, 1, 60),
    (12, 4, 150),
    (12, 8, 60),
    (12, 12, 1),
    (12, 5, 45);

CREATE TABLE sale (
    sale_id INTEGER PRIMARY KEY,
    product_id INTEGER REFERENCES product (product_id),
    weekday TEXT,
    quantity INTEGER
);
INSERT INTO sale VALUES
    (1, 2, 'Monday', 22),
    (2, 4, 'Monday', 87),
    (3, 8, 'Monday', 9),
    (4, 10, 'Monday', 30),
    (5, 3, 'Monday', 18),
    (6, 11, 'Monday', 28),
    (7, 11, 'Tuesday', 43),
    (8, 2, 'Tuesday', 22),
    (9, 10, 'Tuesday', 41),
    (10, 7, 'Tuesday', 8),
    (11, 8, 'Tuesday', 6),
    (12, 6, 'Tuesday', 12),
    (13, 7, 'Wednesday', 4),
    (14, 8, 'Wednesday', 5),
    (15, 11, 'Wednesday', 21),
    (16, 2, 'Wednesday', 32),
    (17, 6, 'Wednesday', 12),
    (18, 10, 'Wednesday', 39),
    (19, 10, 'Thursday', 38),
    (20, 8, 'Thursday', 4),
    (21, 6, 'Thursday', 14),
    (22, 3, 'Thursday', 14),
    (23, 5, 'Thursday', 32),
    (24, 7, 'Thursday', 9),
    (25, 7, 'Friday', 4),
    (26, 4, 'Friday', 42),
    (27, 10, 'Friday', 68),
    (28, 1, 'Friday', 31),
    (29, 3, 'Friday', 11),
    (30, 2, 'Friday', 14),
    (31, 6, 'Saturday', 8),
    (32, 8, 'Saturday', 7),
    (33, 9, 'Saturday', 71),
    (34, 7, 'Saturday', 12),
    (35, 10, 'Saturday', 113),
    (36, 5, 'Saturday', 49);
