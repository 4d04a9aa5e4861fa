"""Tools of work and knowledge: money, code, science, media, sport.

See `catalogue` for the form.
"""

from __future__ import annotations

TEXT = """
convert_currency | Convert an amount between currencies | amount:float@5..5000, from_currency:str@currency, to_currency:str@currency
  Convert {amount} {from_currency} to {to_currency}.
  How much is {amount} {from_currency} in {to_currency}?
  Exchange {amount} from {from_currency} to {to_currency}.
get_stock_price | Current price of a stock | symbol:str@ticker
  What is the stock price of {symbol*}?
  How much is a share of {symbol*}?
  Get the price of {symbol*}.
get_crypto_price | Price of a cryptocurrency | coin:str@coin, currency:str@currency=USD
  What is the price of {coin*}?
  How much is {coin} in {currency}?
calculate_loan | Monthly payment of a loan | principal:int@1000..500000, rate:float@1..12, years:int@1..35
  What is the monthly payment on a loan of {principal} at {rate} percent over {years} years?
  Compute a loan: principal {principal}, rate {rate}, {years} years.
compound_interest | Compound interest on savings | amount:int@100..90000, rate:float@1..9, years:int@2..40
  How much is {amount} worth after {years} years at {rate} percent interest?
  Compound interest of {amount} at {rate} percent for {years} years.
transfer_money | Transfer money to a person | recipient:str@person, amount:float@5..2000, note:str@note=payment
  Send {amount} dollars to {recipient}.
  Transfer {amount} to {recipient}.
  Transfer {amount} to {recipient} with the note {note}.
split_bill | Split a bill with a tip | total:float@15..600, people:int@2..12, tip:int@5..30=10
  Split a bill of {total} between {people} people.
  Split {total} by {people} with a {tip} percent tip.
get_account_balance | Balance of a bank account | account:str@code
  What is the balance of account {account*}?
  Show me the balance on {account*}.
pay_invoice | Pay an invoice | invoice:str@code, date:str@date
  Pay invoice {invoice} on {date}.
  Please pay the invoice {invoice} by {date}.
calculate_tax | Income tax in a country | income:int@10000..300000, country:str@country
  How much tax do I pay on {income} in {country}?
  Calculate the tax for an income of {income} in {country}.
!estimate_mortgage_cost | Estimate the cost of a mortgage | house_price:int@90000..900000, down_payment:int@5000..80000
  Estimate the mortgage cost for a house price of {house_price} and a down payment of {down_payment}.
  What does a mortgage cost with {down_payment} down payment and a house price of {house_price}?
  Mortgage estimate: house price {house_price}, down payment {down_payment}.
!get_dividend_yield | Dividend yield of a company | company:str@company, year:int@2005..2024
  What was the dividend yield of {company*} in {year}?
  Dividend yield of {company*} for the year {year}.
  Get the {year} dividend yield of {company}.
search_products | Search products in the shop | query:str@product, max_price:float@10..900=500.0, in_stock:bool=true
  Search for {query*}.
  Find a {query} under {max_price} dollars.
  Show me {query} products {in_stock?in stock/even if sold out}.
add_to_cart | Add a product to the cart | product:str@product, quantity:int@1..20=1
  Add {quantity} {product} to my cart.
  Put a {product*} in the cart.
track_order | Track an order | order_id:str@code
  Where is my order {order_id*}?
  Track order {order_id*}.
cancel_order | Cancel an order | order_id:str@code, reason:str@note=none
  Cancel order {order_id*}.
  Cancel my order {order_id} because of {reason}.
apply_coupon | Apply a coupon to an order | coupon:str@code, order_id:str@code
  Apply coupon {coupon} to order {order_id}.
  Use the coupon {coupon} on my order {order_id}.
get_reviews | Reviews of a product | product:str@product, min_rating:int@1..5=1, limit:int@3..30=10
  Show reviews of the {product*}.
  Show {limit} reviews of the {product}.
  Reviews of {product} with at least {min_rating} stars.
ship_package | Ship a package | address:str@street, weight:float@0.5..30, express:bool=false
  Ship a package of {weight} kg to {address}.
  Send a {weight} kg parcel to {address} {express?by express/by normal mail}.
!request_product_refund | Request a refund for a product | order_number:str@code, product:str@product
  I want a refund for the {product} from order {order_number}.
  Request a refund of {product}, order number {order_number}.
  Refund the product {product} in order {order_number}.
!compare_product_prices | Compare the prices of products in a store | products:list@product, store:str@company
  Compare the prices of {products} at {store}.
  How do the prices of {products} compare in the {store} store?
  At {store}, compare prices for {products}.
play_song | Play a song | song:str@song, artist:str@person=unknown, shuffle:bool=false
  Play {song*}.
  Play {song} by {artist}.
  Play {song} with shuffle {shuffle?on/off}.
create_playlist | Create a playlist | name:str@event, songs:list@song
  Create a playlist called {name} with {songs}.
  Make a playlist {name} of {songs}.
get_lyrics | Lyrics of a song | song:str@song, artist:str@person
  Show me the lyrics of {song} by {artist}.
  Lyrics for {song} from {artist}, please.
search_movies | Search movies by genre and year | genre:enum(comedy,drama,horror,thriller,romance), year:int@1960..2024
  Find {genre} movies from {year}.
  Which {genre} movies came out in {year}?
get_movie_info | Information about a movie | title:str@movie
  Tell me about the movie {title*}.
  Who directed {title*}?
book_cinema | Book cinema tickets | movie:str@movie, seats:int@1..9, time:str@time
  Book {seats} seats for {movie} at {time}.
  I want {seats} cinema tickets for {movie} at {time}.
recommend_books | Recommend books by genre | genre:str@topic, count:int@2..12=5
  Recommend {count} books about {genre}.
  Can you recommend books on {genre*}?
find_concerts | Find concerts of an artist | artist:str@person, city:str@city
  Are there concerts of {artist} in {city}?
  Find {artist} concerts in {city}.
!rent_music_instrument | Rent a music instrument | instrument:str@instrument, months:int@1..24
  Rent a {instrument} for {months} months.
  I'd like to rent the instrument {instrument} for {months} months.
  For {months} months, rent me a {instrument}.
!get_podcast_episodes | Episodes of a podcast | podcast:str@movie, limit:int@2..30=10
  List episodes of the podcast {podcast*}.
  Show {limit} episodes of the {podcast} podcast.
  Get the podcast {podcast}, limit {limit} episodes.
get_team_score | Last score of a team | team:str@team
  What was the last score of the {team*}?
  How did {team*} play?
get_standings | Standings of a league in a season | league:str@team, season:int@1980..2024
  Show the standings of the {league} league in {season}.
  League table of {league} for the {season} season?
player_stats | Statistics of a player | player:str@person, season:int@1980..2024
  Show me the stats of {player} in the {season} season.
  How did {player} do in {season}?
next_match | Next match of a team | team:str@team, home:bool=true
  When is the next match of {team*}?
  When do the {team} play {home?at home/away} next?
compare_players | Compare two players | first:str@person, second:str@person, metric:enum(goals,assists,points)
  Compare {first} and {second} by {metric}.
  Who has more {metric}, {first} or {second}?
!register_marathon_runner | Register a runner for a marathon | runner:str@person, city:str@city, bib:int@10..9999
  Register {runner} for the {city} marathon with bib {bib}.
  I'd like to register the runner {runner}, bib {bib}, for the marathon in {city}.
  Marathon in {city}: register {runner} with bib number {bib}.
!get_stadium_capacity | Capacity of a stadium | stadium:str@hotel
  What is the capacity of the {stadium*} stadium?
  How many people fit in the stadium {stadium*}?
  Tell me the capacity of {stadium*}.
circle_area | Area of a circle | radius:float@1..200
  What is the area of a circle with radius {radius*}?
  Area of a circle, radius {radius}?
triangle_area | Area of a triangle | base:float@1..200, height:float@1..200
  Area of a triangle with base {base} and height {height}?
  Compute the triangle area for height {height} and base {base}.
rectangle_area | Area of a rectangle | width:float@1..200, length:float@1..200
  What is the area of a rectangle {width} wide and {length} long?
  Rectangle of width {width} and length {length}, what is the area?
factorial | Factorial of a number | number:int@2..60
  What is the factorial of {number*}?
  Compute {number} factorial.
is_prime | Check whether a number is prime | number:int@2..9999
  Is {number*} a prime number?
  Check if {number} is prime.
greatest_divisor | Greatest common divisor | a:int@2..999, b:int@2..999
  What is the greatest common divisor of {a} and {b}?
  GCD of {a} and {b}?
solve_quadratic | Solve a quadratic equation | a:int@1..30, b:int@1..90, c:int@1..90
  Solve the quadratic equation with a {a}, b {b} and c {c}.
  Find the roots for a = {a}, b = {b}, c = {c}.
mean_of_numbers | Mean of a list of numbers | numbers:list_int@1..200
  What is the mean of {numbers}?
  Average {numbers}.
sort_numbers | Sort a list of numbers | numbers:list_int@1..500, descending:bool=false
  Sort {numbers}.
  Sort the numbers {numbers} in {descending?descending/ascending} order.
random_number | Random number in a range | low:int@1..50, high:int@60..999
  Pick a random number between {low} and {high}.
  Random number from {low} to {high}.
log_base | Logarithm of a number | value:float@2..900, base:int@2..16=10
  What is the logarithm of {value*}?
  Log of {value} to base {base}?
!polygon_interior_angle | Interior angle of a regular polygon | sides:int@3..60
  What is the interior angle of a polygon with {sides*} sides?
  Interior angle for {sides} sides?
  A regular polygon has {sides} sides, what is its interior angle?
!cylinder_volume | Volume of a cylinder | radius:float@1..90, height:float@1..90
  What is the volume of a cylinder with radius {radius} and height {height}?
  A cylinder has height {height} and radius {radius}, what is its volume?
  Cylinder of radius {radius}, height {height}: volume?
kinetic_energy | Kinetic energy of a moving mass | mass:float@1..900, velocity:float@1..120
  Kinetic energy of {mass} kg at {velocity} meters per second?
  What is the kinetic energy with mass {mass} and velocity {velocity}?
free_fall_time | Time to fall from a height | height:float@2..500
  How long does a fall from {height*} meters take?
  Time to fall {height} meters?
ohms_law | Voltage from current and resistance | current:float@0.5..20, resistance:float@1..900
  What is the voltage at {current} ampere and {resistance} ohm?
  Voltage for a current of {current} and a resistance of {resistance}.
get_element | Properties of a chemical element | element:str@element
  Tell me about the element {element*}.
  What are the properties of {element*}?
molar_mass | Molar mass of a compound | formula:str@formula
  What is the molar mass of {formula*}?
  Molar mass of {formula}, please.
planet_info | Facts about a planet | planet:str@planet, detail:enum(moons,mass,orbit)=moons
  What do you know about {planet*}?
  Show the {detail} of {planet}.
gene_lookup | Look up a gene of a species | gene:str@ticker, species:enum(human,mouse,yeast)=human
  Look up the gene {gene*}.
  Find the {species} gene {gene}.
!satellite_pass_times | Pass times of a satellite over a city | satellite:str@code, city:str@city
  When does the satellite {satellite} pass over {city*}?
  Pass times of satellite {satellite} in {city}?
  Over {city}, at what times does satellite {satellite} pass?
!dilute_solution | Dilute a solution to a concentration | volume_ml:int@10..900, concentration:float@0.5..12
  Dilute {volume_ml} ml to a concentration of {concentration}.
  I want to dilute a solution: volume {volume_ml} ml, concentration {concentration}.
  To a concentration of {concentration}, dilute {volume_ml} ml of solution.
translate_text | Translate text to a language | text:str@note, language:str@language
  Translate '{text}' to {language*}.
  How do you say '{text}' in {language*}?
detect_language | Detect the language of a text | text:str@note
  What language is '{text}'?
  Detect the language of '{text}'.
define_word | Definition of a word | word:str@topic
  What does {word*} mean?
  Define {word*}.
find_synonyms | Synonyms of a word | word:str@topic, limit:int@2..20=5
  Find synonyms for {word*}.
  Give me {limit} synonyms of {word}.
count_words | Count the words of a file | path:str@file
  How many words are in {path*}?
  Count the words in {path*}.
search_news | Search news about a topic | topic:str@topic, language:str@language=English, limit:int@3..30=10
  What is in the news about {topic*}?
  Find {limit} news articles about {topic}.
  Show {language} news on {topic}.
wikipedia_summary | Summary of a Wikipedia article | title:str@topic, sentences:int@1..9=3
  Summarize the article on {title*}.
  Give me {sentences} sentences about {title}.
!rhyme_finder | Find words that rhyme | word:str@topic, syllables:int@1..12=2
  Which words rhyme with {word*}?
  Find rhymes for {word} with {syllables} syllables.
  Words with {syllables} syllables that rhyme with {word}, please.
!transcribe_audio_file | Transcribe an audio file | audio_path:str@file, language:str@language
  Transcribe the audio file {audio_path} in {language}.
  I need {audio_path} transcribed, the language is {language}.
  The audio in {audio_path} is in {language}, transcribe it.
create_branch | Create a branch in a repository | repository:str@repo, branch:str@file_word
  Create the branch {branch} in {repository}.
  In repository {repository}, make a branch called {branch}.
open_issue | Open an issue in a repository | repository:str@repo, title:str@note
  Open an issue in {repository} titled '{title}'.
  File an issue on {repository}: {title}
merge_request | Merge a pull request | repository:str@repo, number:int@1..2000, squash:bool=false
  Merge pull request {number} in {repository}.
  Merge {number} of {repository} {squash?with squash/without squash}.
run_tests | Run the tests of a project | path:str@file, verbose:bool=false
  Run the tests in {path*}.
  Run tests in {path} {verbose?with verbose output/without verbose output}.
read_file | Read a file | path:str@file, encoding:enum(utf-8,ascii,latin-1)=utf-8
  Read {path*}.
  Open the file {path} as {encoding}.
rename_file | Rename a file | source:str@file, target:str@file
  Rename {source} to {target}.
  Change the name of {source} to {target}.
compress_folder | Compress a folder | folder:str@file_word, level:int@1..9=6
  Compress the folder {folder*}.
  Compress {folder} at level {level}.
restart_server | Restart a server | host:str@domain, delay:int@5..600=30
  Restart the server {host*}.
  Restart {host} in {delay} seconds.
ping_host | Ping a host | host:str@domain, count:int@2..50=4
  Ping {host*}.
  Ping {host} {count} times.
whois_lookup | Registration data of a domain | domain:str@domain
  Who owns the domain {domain*}?
  Look up the registration of {domain*}.
query_database | Run a query on a database table | table:str@file_word, limit:int@5..500=100
  Query the table {table*}.
  Get {limit} rows from the table {table}.
create_user | Create a user account | username:str@file_word, email:str@email, admin:bool=false
  Create the user {username} with email {email}.
  Add {username}, {email}, {admin?as an admin/not as an admin}.
reset_password | Reset the password of a user | email:str@email
  Reset the password for {email*}.
  {email} forgot the password, reset it.
!renew_ssl_certificate | Renew the certificate of a domain | domain:str@domain, days:int@30..400
  Renew the certificate of {domain} for {days} days.
  The certificate for {domain} must be renewed for {days} days.
  Domain {domain}: renew its certificate, {days} days.
!assign_code_reviewer | Assign a reviewer to a pull request | pull_request:int@1..3000, reviewer:str@person
  Assign {reviewer} as reviewer of pull request {pull_request}.
  Make {reviewer} the reviewer for pull request {pull_request}.
  Pull request {pull_request} needs a reviewer, assign {reviewer}.
resize_image | Resize an image | path:str@file, width:int@16..4000, height:int@16..4000
  Resize {path} to {width} by {height}.
  Make {path} {width} wide and {height} high.
convert_image | Convert an image to another format | path:str@file, format:enum(png,jpeg,webp,gif)
  Convert {path*} to {format}.
  Save {path} as {format}.
crop_video | Cut a video between two seconds | path:str@file, start:int@0..90, end:int@100..900
  Cut {path} from second {start} to {end}.
  Keep seconds {start} to {end} of {path}.
hex_to_rgb | Convert a hex color to RGB | color:str@hex
  What is {color*} in RGB?
  Convert the color {color*} to RGB.
create_qr_code | Create a QR code | text:str@domain, size:int@64..1024=256
  Make a QR code for {text*}.
  Create a QR code of {text} with size {size}.
!blend_two_colors | Blend two colors | first_color:str@hex, second_color:str@hex
  Blend {first_color} and {second_color}.
  What color do I get if I blend {first_color} with {second_color}?
  Blend the colors {first_color} and {second_color} please.
get_population | Population of a country | country:str@country, year:int@1950..2024=2020
  What is the population of {country*}?
  How many people lived in {country} in {year}?
capital_of | Capital of a country | country:str@country
  What is the capital of {country*}?
  Name the capital of {country*}.
distance_between | Distance between two cities | start:str@city, end:str@city, unit:enum(km,miles)=km
  How far is it from {start} to {end}?
  Distance in {unit} from {start} to {end}?
get_elevation | Elevation of a mountain or city | place:str@city
  How high is {place*}?
  What is the elevation of {place*}?
earthquake_history | Earthquakes of a country | country:str@country, min_magnitude:float@3..8=5.0
  List earthquakes in {country*}.
  Earthquakes in {country} above magnitude {min_magnitude}?
!river_length_lookup | Look up the length of a river | river:str@city, unit:enum(km,miles)=km
  How long is the river {river*}?
  What is the length of the {river} river in {unit}?
  Length of the {river*} river, please.
find_jobs | Find job offers | title:str@job, city:str@city, remote:bool=false
  Find jobs as a {title} in {city}.
  Are there {remote?remote/on-site} {title} jobs in {city}?
post_job | Post a job offer | title:str@job, salary:int@20000..200000
  Post a job for a {title} with a salary of {salary}.
  We need a {title}, salary {salary}.
enroll_course | Enroll a student in a course | student:str@person, course:str@topic
  Enroll {student} in the {course} course.
  Sign {student*} up for {course}.
grade_exam | Grade an exam | student:str@person, score:int@1..100
  Give {student} a score of {score}.
  Grade the exam of {student} with {score}.
make_quiz | Make a quiz about a topic | topic:str@topic, questions:int@3..40, difficulty:enum(easy,medium,hard)=medium
  Make a quiz about {topic} with {questions} questions.
  I want {questions} {difficulty} questions about {topic}.
!apply_for_scholarship | Apply for a scholarship | student:str@person, university:str@city, amount:int@500..40000
  Apply for a scholarship of {amount} for {student} at the university of {university}.
  Student {student} applies for a {amount} scholarship at university {university}.
  Scholarship at the {university} university for {student}, amount {amount}.
adopt_pet | Find pets for adoption | animal:enum(dog,cat,rabbit,parrot), city:str@city, max_age:int@1..12=5
  Find a {animal} to adopt in {city*}.
  I want to adopt a {animal} up to {max_age} years old in {city}.
plant_care | Care instructions for a plant | plant:str@plant
  How do I care for a {plant*}?
  Care instructions for {plant*}.
book_vet | Book a vet visit for a pet | pet:str@person, date:str@date
  Take {pet} to the vet on {date}.
  Book a vet visit for {pet} on {date}.
!identify_bird_species | Identify a bird from color and region | color:enum(red,blue,yellow,black), region:str@country
  Which {color} bird lives in {region*}?
  Identify a {color} bird in the region {region}.
  I saw a bird in {region}, it was {color}, which species is it?
case_lookup | Look up a court case | case_number:str@code, court:str@city
  Look up case {case_number} at the court of {court}.
  Find the court case {case_number} in {court}.
renew_passport | Renew a passport | passport_number:str@code, express:bool=false
  Renew passport {passport_number}.
  Renew my passport {passport_number} {express?by express/without express}.
parking_ticket | Pay a parking ticket | ticket:str@code, amount:float@10..200
  Pay the parking ticket {ticket} of {amount}.
  Pay {amount} for parking ticket {ticket}.
!register_trademark_name | Register a trademark | trademark:str@company, country:str@country
  Register the trademark {trademark} in {country*}.
  I want to register {trademark} as a trademark in {country}.
  In {country}, register the trademark name {trademark}.
roll_dice | Roll dice | sides:int@4..100, count:int@1..12=1
  Roll a die with {sides} sides.
  Roll {count} dice with {sides} sides.
start_game | Start a game with a friend | game:enum(chess,checkers,poker,go), opponent:str@person
  Start a game of {game} with {opponent*}.
  I want to play {game} against {opponent}.
!save_game_progress | Save the progress of a game | slot:int@1..40, title:str@movie
  Save the game {title} in slot {slot}.
  Save my progress of {title} to slot {slot}.
  Game {title}: save progress, slot {slot}.
"""
